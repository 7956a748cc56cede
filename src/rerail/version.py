"""The version of rerail, where importing it costs nothing."""

VERSION = "0.1.0"
