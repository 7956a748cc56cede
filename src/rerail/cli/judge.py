"""`rerail approve` and `rerail reject`: a person answers a step that waits for one."""

from __future__ import annotations

import click

from rerail.app import interventions
from rerail.cli.options import base_dir, complete_step, find_run, open_store, reach, run_argument, store_option
from rerail.cli.render.output import say
from rerail.cli.render.prompt import who
from rerail.core.state import name


@click.command(epilog="Example: rerail approve last publish -m 'read it, fine'")
@run_argument()
@click.argument("step", shell_complete=complete_step)
@click.option("-m", "--message", "reason", default="", metavar="TEXT", help="Why; recorded with your name and the time.")
@store_option()
def approve(run_name: str, step: str, reason: str, store_url: str | None) -> int:
    """Let a run go on behind a step that waits for a person."""
    return _judge(run_name, step, reason, store_url, approved=True)


@click.command(epilog="Example: rerail reject last publish -m 'chapter 3 is wrong'")
@run_argument()
@click.argument("step", shell_complete=complete_step)
@click.option("-m", "--message", "reason", default="", metavar="TEXT", help="Why; recorded with your name and the time.")
@store_option()
def reject(run_name: str, step: str, reason: str, store_url: str | None) -> int:
    """Fail a step that waits for a person; what does not depend on it goes on."""
    return _judge(run_name, step, reason, store_url, approved=False)


def _judge(run_name: str, step: str, reason: str, store_url: str | None, *, approved: bool) -> int:
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    verdict = interventions.PersonsAnswer(approved=approved, by=who(), reason=reason)
    unit, live = interventions.judge(store, run_id, step, verdict, base_dir=base_dir(store))
    done = f"rerail: {name(unit)} is {'approved' if approved else 'rejected'} by {verdict.by}"
    say(
        f"{done}; the process that drives run {run_id} goes on"
        if live
        else f"{done}\n  next: rerail resume {run_id}{reach(store)}"
    )
    return 0
