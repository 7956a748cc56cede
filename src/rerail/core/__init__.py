"""The pure core: values and decisions. Nothing in here reads a clock, a file or a random number."""
