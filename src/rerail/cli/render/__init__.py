"""What people see: terminals, tables, lines, the dashboard, plans, runs, events and summaries as text."""
