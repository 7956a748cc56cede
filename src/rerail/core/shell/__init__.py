"""Shell scripts as text: the quoting around each expression in one, and the delivery of values that are never parsed."""
