"""`rerail why`: the reasons for which a step ran, ran again or was reused, and the plan of a resume for it."""

from __future__ import annotations

import sys
from typing import Any

import click

from rerail.cli.options import complete_step, find_run_and_step, json_option, open_store, run_argument, store_option
from rerail.cli.render.streams import print_json, printable
from rerail.cli.render.table import Cell, table
from rerail.cli.render.terminal import out_look
from rerail.core.unit_history import sentences, unit_history
from rerail.core.unit_id import UnitId, top_step
from rerail.errors import RerailError, UsageError
from rerail.ports import LoadedRun, Store

_WOULD = {
    "reuse": "a resume would reuse it",
    "restore": "a resume would restore its files and reuse it",
    "run": "a resume would run it",
    "rerun": "a resume would run it again",
    "continue": "a resume would continue it",
    "in-doubt": "a resume would pause at it",
    "skip": "a resume would skip it",
    "later": "a resume would leave it for later",
}


@click.command(epilog="Example: rerail why last publish")
@run_argument(required=False)
@click.argument("step", required=False, default=None, shell_complete=complete_step)
@click.argument("item", required=False, default=None)
@json_option("The sentences by invocation, and the plan for the step.")
@store_option()
def why(run_name: str | None, step: str | None, item: str | None, as_json: bool, store_url: str | None) -> int:
    """Say why a step ran, ran again or was reused, from what is recorded, and what a resume would do with it."""
    store = open_store(store_url)
    run_id, (step, item) = find_run_and_step(store, run_name, step, item)
    if step is None:
        raise UsageError("no step named", hint=f"rerail show {run_id}, then rerail why {run_id} STEP")
    unit = UnitId(step, item) if item is not None else UnitId.parse(step)
    from rerail.app.step_page import inspect_step  # planning and loading: not for the help of this command

    recording = store.read(run_id)
    page = inspect_step(store, recording, unit, alive=store.ownership(run_id).alive)  # refuses a step that is not there
    history = unit_history(store.history(run_id), unit)
    told = sentences(history)
    now = _now(store, recording, unit)
    if as_json:
        invocations = [
            {
                "invocation": one.invocation,
                "started_at": one.started_at,
                "sentences": [sentence for number, sentence in told if number == one.invocation],
            }
            for one in history.invocations
        ]
        data = {"run_id": run_id, "step": unit.step, "item": unit.item, "status": page.status, "invocations": invocations}
        print_json(data | {"now": now})
        return 0
    look = out_look()
    begun = {one.invocation: one.started_at.astimezone().strftime("%Y-%m-%d %H:%M") for one in history.invocations}
    rows: list[list[Cell]] = []
    for at, (number, sentence) in enumerate(told):
        is_first = at == 0 or told[at - 1][0] != number
        rows.append([(str(number) if is_first else "", ""), (begun[number] if is_first else "", "dim"), (sentence, "")])
    rows.append([("now", ""), ("", ""), (now["sentence"], "bold")])
    status = f": {page.status}" if page.status else ""
    sys.stdout.write(printable(f"{unit} in run {run_id}{status}") + "\n")
    sys.stdout.write("".join(line + "\n" for line in table(rows, look, indent="  ")))
    return 0


def _now(store: Store, recording: LoadedRun, unit: UnitId) -> dict[str, Any]:
    """Return the decision of a resume about a unit, or about the step that it is inside of."""
    from rerail import api  # planning and loading: only where a run is at rest
    from rerail.core.plan import ExecuteOptions

    run_id = recording.header.run_id
    if store.ownership(run_id).alive:
        return {"decision": "", "reason": "", "sentence": "the run is running: rerail watch " + run_id}
    request = api.ResumeRequest(execute=ExecuteOptions(verify="fast"))
    try:
        ready = api.prepare(store, run_id, request, base_dir=store.base_dir).shown
    except RerailError as error:
        return {"decision": "", "reason": error.message, "sentence": f"a resume is refused: {error.message}"}
    outer = top_step(unit.step)
    inner = next((made for made in ready.plan.everything if made.item is not None and made.unit == unit), None)
    made = inner or next((made for made in ready.plan.decisions if made.step == outer), None)
    if made is None:
        return {"decision": "", "reason": "", "sentence": "it is not in the pipeline any more"}
    subject = "" if made.unit == unit else f"of {made.step}: "
    condition = f"; only if the result of {' or '.join(made.unless_unchanged)} changes" if made.unless_unchanged else ""
    sentence = f"{subject}{_WOULD[made.decision]} ({made.reason}{condition})"
    return {"decision": made.decision, "reason": made.reason, "sentence": sentence}
