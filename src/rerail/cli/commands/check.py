"""`rerail check`: a pipeline file without running it."""

from __future__ import annotations

import os

import click

from rerail import api
from rerail.app.checks import check_paths
from rerail.cli.options import open_store
from rerail.cli.render.streams import say
from rerail.cli.render.units import counted


@click.command(epilog="Example: rerail check pipeline.yaml")
@click.argument("pipeline", type=click.Path())
def check(pipeline: str) -> int:
    """Check a pipeline file and report every error with line and column."""
    from rerail.artifacts.paths import place_of  # only for pipelines that name files

    loaded, _ = api.load(pipeline)
    store = open_store(None, pipeline)
    directory = os.path.dirname(os.path.abspath(pipeline))
    check_paths(loaded, place_of(directory, store.base_dir, store.root), pipeline)
    say(f"{pipeline}: OK ({counted(len(loaded.steps), 'step')}, {counted(len(loaded.params), 'param')})")
    return 0
