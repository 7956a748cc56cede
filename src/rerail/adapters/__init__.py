"""Small adapters to the outside: the clock, git, bounded regular expressions, sources of the items of a map."""
