"""Shell scripts as text: where an expression stands in one, and how a value gets there without being parsed."""
