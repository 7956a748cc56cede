"""`rerail completion`: the completion script of a shell."""

from __future__ import annotations

import sys

import click

SHELLS = ("bash", "zsh", "fish")


@click.command(epilog="Example: rerail completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Print a script that completes commands, options, runs and steps in a shell."""
    from click.shell_completion import get_completion_class

    from rerail.cli.main import cli  # it loads this module

    made = get_completion_class(shell)
    assert made is not None
    sys.stdout.write(made(cli, {}, "rerail", "_RERAIL_COMPLETE").source() + "\n")
    return 0
