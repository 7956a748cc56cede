"""Loaders: pipeline files parsed and validated into `Pipeline` values."""
