"""Results of maps as files: a cache of the journal, restored where it is lost or damaged."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import msgspec

from rerail import durable
from rerail.core import events as ev
from rerail.core import item_list as lists
from rerail.core.items import COMPLETED, Items
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId
from rerail.engine.recorder import Recorder
from rerail.engine.spec import unit_name

TAGS = ("step-completed", "step-marked")


class ResultsMissing(Exception):
    """The journal has no outputs of items that count as completed."""

    def __init__(self, indexes: list[int]) -> None:
        super().__init__(f"the records of {len(indexes)} completed items are lost")
        self.indexes = indexes


def result_lines(events: Iterable[ev.Event], unit: UnitId, keys: list[str], items: Items) -> list[bytes]:
    """Return the newest outputs of every completed item, in the order of the list, as lines of JSON.

    An item that a person marked as completed has none.
    """
    positions = {unit.child(key).item: index for index, key in enumerate(keys)}
    found: dict[int, bytes] = {}
    for event in events:
        assert isinstance(event, ev.StepCompleted | ev.StepMarked)
        index = positions.get(event.item)
        if index is not None and items.marks[index] == COMPLETED:
            outputs = event.outputs if isinstance(event, ev.StepCompleted) else {}
            found[index] = msgspec.json.encode({"key": keys[index], "outputs": outputs}) + b"\n"
    if items.completed != len(found):
        raise ResultsMissing([at for at, mark in enumerate(items.marks) if mark == COMPLETED and at not in found])
    return [found[index] for index in range(len(keys)) if items.marks[index] == COMPLETED]


def digest_of(lines: Iterable[bytes]) -> str:
    """Return the digest of a results file."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line)
    return digest.hexdigest()


def restore_results(recorder: Recorder, state: RunState, work_dir: str) -> None:
    """Write the missing or damaged results files of completed maps again."""
    for unit, record in state.units.items():
        wanted = record.outputs.get("results_sha256")
        if record.items is None or record.status != "completed" or not isinstance(wanted, str):
            continue
        if _sha256(os.path.join(work_dir, str(record.outputs.get("results_file")))) == wanted:
            continue
        listing = lists.recorded(recorder.find(lists.TAGS, unit.step), unit)
        try:
            lines = result_lines(recorder.find(TAGS, unit.step), unit, listing.keys, record.items) if listing else []
        except ResultsMissing:
            lines = []
        if digest_of(lines) == wanted:
            recorder.save_results(unit_name(unit), lines)
            recorder.warn(f"{unit}: its results were lost or damaged; rebuilt from the journal")
        else:
            recorder.warn(f"{unit}: its results are lost or damaged, and the journal does not have them either")


def _sha256(path: str) -> str:
    try:
        with durable.open_to_read(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
