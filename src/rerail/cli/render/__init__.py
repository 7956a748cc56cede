"""Output for people: terminals, tables, lines, the dashboard, plans, runs, events and summaries as text."""
