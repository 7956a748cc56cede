"""`rerail reject`: reject a step that waits for a person."""

from __future__ import annotations

import click

from rerail.cli.approvals import answer, answer_options


@click.command(epilog="Example: rerail reject last publish -m 'chapter 3 is wrong'")
@answer_options
def reject(run_name: str, step: str | None, reason: str, store_url: str | None) -> int:
    """Reject a step that waits for approval: it fails, and steps that do not depend on it continue."""
    return answer(run_name, step, reason, store_url, approved=False)
