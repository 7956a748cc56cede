"""Use cases: what a client (the command line, a library, a page) asks for. Nothing here decides about steps."""
