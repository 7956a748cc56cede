"""`rerail schema`: the JSON Schema of pipeline files."""

from __future__ import annotations

import json
import sys

import click


@click.command(epilog="Example: rerail schema > pipeline.schema.json")
def schema() -> int:
    """Print the JSON Schema of pipeline files, for editors."""
    from rerail.loaders.schema import schema as built  # only for this command

    sys.stdout.write(json.dumps(built(), indent=2) + "\n")
    return 0
