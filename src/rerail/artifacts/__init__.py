"""Files that steps produce and read: found, proved, kept and put back."""
