"""rerail: pipelines that survive. Run, get killed, resume exactly where you were."""

from rerail.version import VERSION

__version__ = VERSION

__all__ = ["__version__"]
