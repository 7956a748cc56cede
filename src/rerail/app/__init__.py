"""Use cases for clients (the command line, a library, a web page). Nothing here decides about steps."""
