"""The runs of a store: summaries, the run to resume, runs to delete, and costs.

Queries about all of them are answered by the index where it is valid, else by the runs themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from rerail.core.durations import NEVER, LastSeen
from rerail.core.state import shown_status
from rerail.core.summary import Summary, summary_of
from rerail.errors import RerailError, UsageError
from rerail.ports import LoadedRun, Ownership, Store, SummaryIndex

if TYPE_CHECKING:
    from rerail.core.ledger import LedgerEntry
    from rerail.core.model import RunHeader

STATUSES = ("pending", "running", "completed", "failed", "interrupted", "paused", "crashed", "damaged")


def summaries(store: Store, run_ids: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return one row for each run, newest first; a run that cannot be read is listed as damaged."""
    index = store.index()
    rows = []
    for run_id in store.runs() if run_ids is None else run_ids:
        summary = index.get(run_id)
        if summary is not None and summary.status != "running":
            fields = _fields(summary)
            fields["owner"] = None
            rows.append(fields)
        else:
            rows.append(_read(store, run_id))
    return sorted(rows, key=itemgetter("created_at", "run_id"), reverse=True)


def _fields(summary: Summary) -> dict[str, Any]:
    return msgspec.structs.asdict(summary)


def _read(store: Store, run_id: str) -> dict[str, Any]:
    try:
        recording = store.read(run_id)
    except RerailError as error:
        return {
            "run_id": run_id,
            "pipeline": "?",
            "labels": {},
            "params": {},
            "status": "damaged",
            "resumable": False,
            "created_at": _created_at(store, run_id),
            "owner": None,
            "error": error.message,
        }
    ownership = store.ownership(run_id)
    row = _fields(summary_of(recording.header, recording.state, last_seen(store, recording, alive=ownership.alive)))
    return row | {
        "status": shown_status(recording.state, owner_alive=ownership.alive),
        "owner": owner_fields(ownership),
    }


def last_seen(store: Store, recording: LoadedRun, *, alive: bool) -> LastSeen:
    """Return the last sign of the invocation that has not recorded its end: the present, if its process is alive."""
    if recording.state.status != "running":
        return NEVER
    if alive:
        return LastSeen(at=datetime.now(UTC))
    from rerail.app.traces import death_of  # only for runs that were killed

    return death_of(store, recording)


def owner_fields(ownership: Ownership) -> dict[str, Any] | None:
    """Return the owner of a run, for programs."""
    return {**msgspec.to_builtins(ownership.owner), "alive": ownership.alive} if ownership.owner else None


def newest_first(store: Store) -> list[str]:
    """Return run ids by the time they were created, newest first."""

    def created(run_id: str) -> tuple[str, str]:
        return (_created_at(store, run_id), run_id)

    return sorted(store.runs(), key=created, reverse=True)


def newest_live(store: Store) -> str | None:
    """Return the newest run with a live owner; None if there is none."""
    index = store.index()
    return next(
        (
            run_id
            for run_id in newest_first(store)
            if ((at_rest := index.get(run_id)) is None or at_rest.status == "running") and store.ownership(run_id).alive
        ),
        None,
    )


def _created_at(store: Store, run_id: str) -> str:
    """Return when a run was created, for sorting; '' if it is unknown."""
    header = store.header(run_id)
    return header.created_at if header else ""


def unfinished(store: Store, wanted: Callable[[RunHeader | Summary], bool] = lambda _: True) -> list[dict[str, Any]]:
    """Return the rows of runs that are not completed, newest first; only of those that `wanted` takes.

    Of the runs at rest none is opened, and of the others only the header unless they are wanted.
    """
    index = store.index()
    rows = []
    for run_id in store.runs():
        summary = index.get(run_id)
        if summary is not None and summary.status != "running":
            if summary.status != "completed" and wanted(summary):
                rows.append(_fields(summary) | {"owner": None})
            continue
        header = store.header(run_id)
        if header is None or wanted(header):
            row = _read(store, run_id)
            if row["status"] != "completed":
                rows.append(row)
    return sorted(rows, key=itemgetter("created_at", "run_id"), reverse=True)


def same_work(store: Store, pipeline_path: str, params: dict[str, Any], *, base_dir: str) -> list[dict[str, Any]]:
    """Return the rows of the unfinished runs of this pipeline file with exactly these params, newest first."""
    path = os.path.realpath(pipeline_path)

    def is_same(run: RunHeader | Summary) -> bool:
        return run.params == params and os.path.realpath(os.path.join(base_dir, run.pipeline_path)) == path

    return [row for row in unfinished(store, is_same) if row["status"] != "damaged"]


def _is_known_completed(index: SummaryIndex, run_id: str) -> bool:
    """Return whether a valid index says so: of thousands of runs none has to be read to find that out."""
    summary = index.get(run_id)
    return summary is not None and summary.status == "completed"


def resumable(
    store: Store, pipeline_path: str, run_id: str | None, given: dict[str, Any], *, base_dir: str
) -> str | None:
    """Return the run that `run --resume` continues: by id, or the newest unfinished matching one of this pipeline."""
    if run_id is not None:
        if run_id not in store.runs():
            return None
        _check_params(store, run_id, given)
        return run_id
    path = os.path.realpath(pipeline_path)
    index = store.index()
    for candidate in newest_first(store):
        if _is_known_completed(index, candidate):
            continue
        header = store.header(candidate)
        if header is None or os.path.realpath(os.path.join(base_dir, header.pipeline_path)) != path:
            continue
        recording = store.read(candidate)
        if recording.state.status != "completed" and not _conflicts(recording, given):
            return candidate
    return None


def _conflicts(recording: LoadedRun, given: dict[str, Any]) -> list[str]:
    params = recording.header.params
    return [name for name, value in given.items() if name not in params or params[name] != value]


def _check_params(store: Store, run_id: str, given: dict[str, Any]) -> None:
    conflicting = _conflicts(store.read(run_id), given)
    if conflicting:
        raise UsageError(
            f"run {run_id} was started with other params: {', '.join(conflicting)}",
            hint=f"rerail resume {run_id}, or another --id",
        )


def prunable(store: Store, oldest: float | None, keep: int, statuses: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the rows of runs with these statuses older than `oldest` seconds; no live ones, nor the newest `keep`."""
    now = datetime.now(UTC)
    rows = []
    for row in list(summaries(store))[keep:]:
        alive = bool(row.get("owner") and row["owner"]["alive"])
        if alive or row["status"] not in statuses:
            continue
        created = datetime.fromisoformat(row["created_at"].replace("Z", "+00:00")) if row["created_at"] else None
        if oldest is None or (created is not None and (now - created).total_seconds() > oldest):
            rows.append(row)
    return rows


def prune_run(store: Store, run_id: str, statuses: tuple[str, ...]) -> None:
    """Delete a run; raise if it has another status by now, or an owner."""

    def check_status() -> None:
        # The list is not enough to destroy anything: since then a step may have been marked, the run resumed or
        # forked, and damage is evidence.
        try:
            status = shown_status(store.read(run_id).state, owner_alive=False)  # its lock is ours
        except RerailError:
            if "damaged" not in statuses:
                raise
            return
        if status not in statuses:
            raise UsageError(f"it is {status} now", hint=f"rerail show {run_id}")

    delete_run(store, run_id, check_status)


def delete_run(store: Store, run_id: str, check: Callable[[], None] = lambda: None) -> None:
    """Delete a run, then the channels of its last attempts, and those of them that still run."""
    from rerail import processes  # only for runs that were killed
    from rerail.app.traces import process_tag_in
    from rerail.executors import channels

    mark = process_tag_in(store, run_id)
    store.delete(run_id, check)
    if mark:
        processes.kill_tagged(mark)
        channels.wipe(mark)


def collect_copies(store: Store, gone: set[str], *, dry_run: bool) -> tuple[int, int]:
    """Remove copies of artifacts that only deleted runs refer to; return how many, and how many bytes.

    Raise BlockingIOError if a live run may need them.
    """
    from rerail.artifacts.manifest import read_manifest  # only for runs with artifacts that are trees

    content = store.content

    def find_live() -> set[str]:
        live: set[str] = set()
        for run_id in store.runs():
            if run_id in gone:
                continue
            for unit in store.read(run_id).state.units.values():
                for record in unit.artifacts:
                    live |= {record.sha256, record.internal.manifest}
                    if record.internal.manifest:
                        live.update(entry.sha256 for entry in read_manifest(content, record.internal.manifest) or ())
        return live

    return content.collect(find_live, dry_run=dry_run)


def ledger(
    store: Store,
    run_ids: Iterable[str],
    pipeline: str,
    *,
    whole: bool,
    unreadable: Callable[[str, RerailError], None],
) -> Iterator[LedgerEntry]:
    """Yield all attempts of runs that cost something; with `whole`, of all runs.

    With `whole` a run that cannot be read is an error; else `unreadable` is called for it.
    """
    for run_id in run_ids:
        try:
            header = store.header(run_id)
            name = header.pipeline if header else ""
            if not pipeline or pipeline == name:
                attempts = _attempts(store, run_id, name)
                if whole or any(entry.metrics for entry in attempts):
                    yield from attempts
        except RerailError as error:
            if whole:
                raise
            unreadable(run_id, error)


def _attempts(store: Store, run_id: str, pipeline: str) -> list[LedgerEntry]:
    """Return the attempts of a run; of interrupted ones that are not recovered yet, their traces count."""
    from rerail.core.events import RunRepaired  # only for `cost`
    from rerail.core.ledger import LedgerEntry, discarded, entries, with_interrupted

    history = list(store.history(run_id))
    found = list(entries(run_id, pipeline, history))
    repaired = next((event.at for _, event in history if isinstance(event, RunRepaired)), None)
    if repaired is None and all(entry.status != "running" for entry in found):
        return found
    recording = store.read(run_id)
    like = LedgerEntry(run_id=run_id, pipeline=pipeline, at=repaired or datetime.now(UTC), status="completed")
    before = discarded(found, recording.state, like) if repaired else []
    if store.ownership(run_id).alive:
        return [*before, *found]
    from rerail.app.traces import last_traces  # only for runs that were interrupted, or are in flight

    return [*before, *with_interrupted(found, recording.state, last_traces(store, recording), like)]
