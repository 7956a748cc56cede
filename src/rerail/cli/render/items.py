"""Text of `rerail show RUN STEP`: the items of a map, a page at a time."""

from __future__ import annotations

import sys
from typing import Any

from rerail.cli.render.streams import print_json, say
from rerail.cli.render.table import Cell, table
from rerail.cli.render.terminal import STYLES, out_look
from rerail.cli.render.units import seconds
from rerail.core import item_list as lists
from rerail.core.events import StepCompleted
from rerail.core.items import STATUS
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId
from rerail.errors import UsageError
from rerail.ports import Store

PAGE = 50


def show_items(store: Store, run_id: str, step: str, page: int, status: str | None, *, as_json: bool) -> int:
    """Print a page of the items of a map, all or those with a status, or all of them as JSON."""
    state = store.read(run_id).state
    unit = state.unit(UnitId(step))
    if unit.items is None or unit.items.is_loop or not unit.items.total:
        maps = [name for (name, item), known in state.units.items() if item is None and _is_map(known)]
        there = ", ".join(maps) or "none yet"
        raise UsageError(
            f"{step!r} is not a map with items in run {run_id} (maps: {there})", hint=f"rerail show {run_id}"
        )
    listing = lists.recorded(store.find(run_id, lists.TAGS, step), UnitId(step))
    keys = listing.keys if listing is not None else [str(number) for number in range(unit.items.total)]
    ends = {
        event.item: event for event in store.find(run_id, ("step-completed",), step) if isinstance(event, StepCompleted)
    }
    rows = [_row(state, step, key, mark, ends.get(key)) for key, mark in zip(keys, unit.items.marks, strict=True)]
    wanted = [row for row in rows if status in (None, row["status"])]
    if as_json:
        print_json(wanted)
        return 0
    pages = max((len(wanted) + PAGE - 1) // PAGE, 1)
    page = min(page, pages)
    shown = wanted[(page - 1) * PAGE : page * PAGE]
    look = out_look()
    cells: list[list[Cell]] = [[(head, "dim") for head in ("ITEM", "STATUS", "ATTEMPTS", "TOOK", "")]]
    for row in shown:
        cells.append(
            [
                (row["item"], ""),
                (f"{look.symbol(row['status'])} {row['status']}", STYLES.get(row["status"], "")),
                (str(row["attempts"]) if row["attempts"] > 1 else "", ""),
                (seconds(row["duration_seconds"]), ""),
                (row["error"], "dim"),
            ]
        )
    sys.stdout.write("".join(line + "\n" for line in table(cells, look)))
    say(
        f"  page {page} of {pages}, {len(wanted)} of {len(rows)} items" + (f": --page {page + 1}" if page < pages else "")
    )
    return 0


def _is_map(unit: UnitState) -> bool:
    return unit.items is not None and not unit.items.is_loop and unit.items.total > 0


def _row(state: RunState, step: str, item: str, mark: int, end: StepCompleted | None) -> dict[str, Any]:
    known = state.units.get(UnitId(step, item))
    status = STATUS[mark] if known is None or mark else known.status
    told = end if known is None and mark else known
    attempts = end.attempt if known is None and mark and end else known.attempts if known else 0
    return {
        "item": item,
        "status": status,
        "attempts": attempts,
        "duration_seconds": told.duration if told else None,
        "error": known.error.message if known and known.error and status == "failed" else "",
    }
