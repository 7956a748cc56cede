"""`rerail verify`: prove the state that a resume relies on, without owning the run or changing a byte."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from rerail.app.runs import newest_first
from rerail.cli.options import complete_run, find_run, json_option, open_store, store_option
from rerail.cli.render.streams import ReadingProgress, print_json, say
from rerail.cli.render.units import counted
from rerail.errors import RerailError, StateError, UsageError
from rerail.ports import Store

BROKEN_ARTIFACTS = 1  # exit code: the state is intact, the artifacts are not


@click.command(epilog="Example: rerail verify --all")
@click.argument("run_name", metavar="[RUN]", required=False, default=None, shell_complete=complete_run)
@click.option("--all", "everything", is_flag=True, help="Verify every run and every copy in the content store.")
@json_option("An array of runs and findings.")
@store_option()
def verify(run_name: str | None, everything: bool, as_json: bool, store_url: str | None) -> int:
    """Verify a run: its journal, checkpoint, pipeline and artifacts."""
    store = open_store(store_url)
    if bool(run_name) == everything:
        raise UsageError("verify needs a RUN or --all", hint="rerail verify last")
    runs = newest_first(store) if everything else [find_run(store, run_name or "")]
    found = [_verified(store, run_id, files=not everything) for run_id in runs]
    rotten = _rotten(store) if everything else []
    if as_json:
        print_json(found)
    else:
        for row in found:
            _say(row)
    bad = [row for row in found if not row["intact"]]
    if len(found) > 1 or not found:
        say(f"rerail: {len(found) - len(bad)} of {len(found)} runs are intact")
    for sha256 in rotten:
        say(f"rerail: the copy {sha256[:16]}… in the content store is corrupt; it is not used")
    if bad:
        return StateError.exit_code
    return BROKEN_ARTIFACTS if rotten or any(row.get("flaws") for row in found) else 0


def _verified(store: Store, run_id: str, *, files: bool) -> dict[str, Any]:
    try:
        proof = store.verify(run_id)
        row = {"run_id": run_id, "intact": True, **msgspec.structs.asdict(proof)}
        return row | (_files(store, run_id) if files else {})
    except RerailError as error:
        return {"run_id": run_id, "intact": False, "problem": error.message, "next": error.hint}


def _files(store: Store, run_id: str) -> dict[str, Any]:
    """Return the flaws in the artifacts of completed steps, and in their copies."""
    from rerail import api  # planning and loading: not for all of this command

    try:
        ready = api.prepare(store, run_id, api.ResumeRequest(progress=ReadingProgress()), base_dir=store.base_dir).shown
    except UsageError as error:  # the pipeline file is invalid: that is not damage of the run
        return {"flaws": [], "files": f"artifacts not checked: {error.message.splitlines()[0]}"}
    units = ready.recording.state.units.values()
    kept = {
        record.internal.manifest or record.sha256 for unit in units for record in unit.artifacts if record.internal.kept
    }
    flaws = [
        {"step": unit.step, "path": flaw.path, "condition": flaw.condition, "restorable": flaw.restorable}
        for unit, found in ready.audit.flaws.items()
        for flaw in found
        if not flaw.later
    ]
    return {
        "artifacts": sum(len(paths) for paths in ready.audit.intact.values()),
        "flaws": flaws,
        "rotten": [sha256 for sha256 in sorted(kept) if store.content.defect(sha256)],
    }


def _rotten(store: Store) -> list[str]:
    return [sha256 for sha256 in store.content.digests() if store.content.defect(sha256)]


def _say(row: dict[str, Any]) -> None:
    if not row["intact"]:
        say(f"rerail: run {row['run_id']} is NOT intact: {row['problem']}\n  next: {row['next']}")
        return
    segments = f"{row['segments']} segment{'s' if row['segments'] != 1 else ''}"
    whole = f", {counted(row['artifacts'], 'artifact')}" if row.get("artifacts") else ""
    what = (
        f"run {row['run_id']}: journal intact, {counted(len(row['flaws']), 'artifact')} changed"
        if row.get("flaws")
        else ""
    )
    what = what or f"run {row['run_id']} is intact"
    say(f"rerail: {what}: {row['records']} records in {segments}, {row['bytes']} bytes{whole}")
    for notice in row["notices"]:
        say(f"  {notice}")
    if row.get("files"):
        say(f"  {row['files']}")
    for flaw in row.get("flaws", ()):
        can = "resume restores it" if flaw["restorable"] else f"resume reruns {flaw['step']}"
        say(f"  {flaw['path']} of {flaw['step']}: {flaw['condition']}; {can}")
    for sha256 in row.get("rotten", ()):
        say(f"  the copy {sha256[:16]}… in the content store is missing or corrupt; it is not used")
    if row.get("flaws"):
        say(f"  next: rerail resume {row['run_id']}")
