"""The runs of a store as rows, newest first: from the index where that counts, else from the runs themselves."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import msgspec

from rerail.core.state import shown_status
from rerail.core.summary import Summary, summary_of
from rerail.errors import RerailError
from rerail.ports import Ownership
from rerail.stores import index
from rerail.stores.directory import DirectoryStore

STATUSES = ("pending", "running", "completed", "failed", "interrupted", "paused", "crashed", "damaged")


def summaries(store: DirectoryStore, run_ids: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """One row for each run; a run that cannot be read is listed as what it is."""
    known = index.load(store.root)
    rows = []
    for run_id in store.runs() if run_ids is None else run_ids:
        row = known.get(run_id)
        if row is not None and row.summary.status != "running" and index.is_current(row, store.root):
            fields = _fields(row.summary)
            fields["owner"] = None
            rows.append(fields)
        else:
            rows.append(_read(store, run_id))
    return sorted(rows, key=itemgetter("created_at", "run_id"), reverse=True)


def _fields(summary: Summary) -> dict[str, Any]:
    return msgspec.structs.asdict(summary)


def _read(store: DirectoryStore, run_id: str) -> dict[str, Any]:
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
            "created_at": store.created_at(run_id),
            "owner": None,
            "error": error.message,
        }
    ownership = store.ownership(run_id)
    row = _fields(summary_of(recording.header, recording.state))
    return row | {
        "status": shown_status(recording.state, owner_alive=ownership.alive),
        "owner": owner_fields(ownership),
    }


def owner_fields(ownership: Ownership) -> dict[str, Any] | None:
    """Who owns a run, for programs."""
    return {**msgspec.to_builtins(ownership.owner), "alive": ownership.alive} if ownership.owner else None
