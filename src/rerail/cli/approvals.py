"""Shared parts of `rerail approve` and `rerail reject`: the answer of a person to a step that waits for one."""

from __future__ import annotations

from typing import Any

import click

from rerail.app import interventions
from rerail.cli.options import complete_step, find_run, open_store, run_argument, store_flag, store_option
from rerail.cli.render.next_command import next_command
from rerail.cli.render.prompt import who
from rerail.cli.render.streams import say
from rerail.errors import UsageError


def answer_options(command: Any) -> Any:
    for option in (
        store_option(),
        click.option(
            "-m", "--message", "reason", default="", metavar="TEXT", help="Reason; recorded with your name and the time."
        ),
        click.argument("step", required=False, default=None, metavar="STEP", shell_complete=complete_step),
        run_argument(),
    ):
        command = option(command)
    return command


def answer(run_name: str, step: str | None, reason: str, store_url: str | None, *, approved: bool) -> int:
    """Record a person's answer, and print its effect."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    if step is None:
        state = store.read(run_id).state
        waits = state.cause == "approval"
        hint = next_command(run_id, state, store_flag(store)) if waits else f"rerail show {run_id}{store_flag(store)}"
        raise UsageError("no step named", hint=hint)
    verdict = interventions.PersonsAnswer(approved=approved, by=who(), reason=reason)
    unit, live = interventions.answer(store, run_id, step, verdict, base_dir=store.base_dir)
    done = f"rerail: {unit} is {'approved' if approved else 'rejected'} by {verdict.by}"
    say(f"{done}; run {run_id} continues" if live else f"{done}\n  next: rerail resume {run_id}{store_flag(store)}")
    return 0
