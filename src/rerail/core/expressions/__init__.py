"""Expressions: the text between `${{` and `}}`, what it may name and call, and how its values are rendered."""
