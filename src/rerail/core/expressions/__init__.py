"""Expressions: the text between `${{` and `}}`, the names and functions it may use, and how its values are rendered."""
