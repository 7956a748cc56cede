"""`rerail approve`: approve a step that waits for a person."""

from __future__ import annotations

import click

from rerail.cli.approvals import answer, answer_options


@click.command(epilog="Example: rerail approve last publish -m 'read it, fine'")
@answer_options
def approve(run_name: str, step: str | None, reason: str, store_url: str | None) -> int:
    """Approve a step that waits for approval; the run then continues."""
    return answer(run_name, step, reason, store_url, approved=True)
