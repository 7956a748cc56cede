"""Artifacts: the files that steps produce and read, found, sealed, audited and restored."""
