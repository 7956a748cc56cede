"""Documents → pipelines."""
