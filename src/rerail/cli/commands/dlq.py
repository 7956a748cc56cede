"""`rerail dlq`: the items of maps that failed permanently, and commands to retry, drop or edit them."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from rerail.app import interventions
from rerail.cli.execute import ExecuteFlags, changes_option, execute_options, resume_run
from rerail.cli.help import SectionedCommand
from rerail.cli.options import (
    find_run,
    find_run_or_newest,
    json_option,
    open_store,
    run_argument,
    store_flag,
    store_option,
)
from rerail.cli.render.streams import print_json, printable, say
from rerail.cli.render.table import Cell, table
from rerail.cli.render.terminal import out_look
from rerail.cli.render.units import age
from rerail.core import item_list as lists
from rerail.core.dead_letters import DeadLetter, history, select
from rerail.core.events import Failure
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId
from rerail.errors import RunNotFound, UsageError
from rerail.ports import Store
from rerail.text import one_line, without_escapes


@click.group(epilog="Example: rerail dlq retry last --error 'rate limit'")
def dlq() -> None:
    """The dead letter queue: items of maps that failed permanently."""


def selecting(command: Any) -> Any:
    for option in (
        click.argument("items", nargs=-1, metavar="[ITEM]..."),
        click.option("--step", default="", metavar="STEP", help="Only items of this map."),
        click.option("--error", default="", metavar="TEXT", help="Only items whose error contains this text."),
    ):
        command = option(command)
    return command


@dlq.command(name="list", epilog="Example: rerail dlq list last --json")
@run_argument(required=False)
@selecting
@json_option("An array of items with all their errors, newest first.")
@store_option()
def list_letters(
    run_name: str | None, items: tuple[str, ...], step: str, error: str, as_json: bool, store_url: str | None
) -> int:
    """List the items that failed permanently, newest first."""
    store = open_store(store_url)
    run_id, items = _run_and_items(store, run_name, items)
    letters = sorted(_letters(store, run_id, items, step, error), key=lambda one: one.failed_at, reverse=True)
    if as_json:
        print_json(letters)
    elif not letters:
        say(f"rerail: the dead letter queue of run {run_id} is empty\n  next: rerail show {run_id}")
    else:
        look = out_look()
        rows: list[list[Cell]] = [[(head, "dim") for head in ("ITEM", "STEP", "ATTEMPTS", "AGE", "ERROR")]]
        now = datetime.now(UTC)
        for one in letters:
            failed = one.failed_at.isoformat()
            rows.append(
                [
                    (one.item, ""),
                    (one.step, "dim"),
                    (str(one.attempts), ""),
                    (age(failed, now), "dim"),
                    (one_line(one.error.message), "red"),
                ]
            )
        sys.stdout.write("".join(line + "\n" for line in table(rows, look)))
        say(f"  next: rerail dlq show {run_id} ITEM, or rerail dlq retry {run_id}{store_flag(store)}")
    return 0


def _run_and_items(store: Store, wanted: str | None, items: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Resolve RUN ITEM …, where RUN may be left out: a word that names no run may name an item of the newest one."""
    try:
        return find_run_or_newest(store, wanted), items
    except RunNotFound:
        if wanted is None or not store.runs():
            raise
        newest = find_run_or_newest(store, None)
        if select(store.read(newest).state, (wanted,))[1]:
            raise
        return newest, (wanted, *items)


def _letters(store: Store, run_id: str, items: tuple[str, ...], step: str, error: str) -> list[DeadLetter]:
    state = store.read(run_id).state
    units = _meant(state, run_id, items, step, error)
    errors = history(store.history(run_id), units) if units else {}
    listings: dict[UnitId, lists.ItemList | None] = {}
    letters = []
    for unit in units:
        known = state.units[unit]
        assert unit.item is not None
        controller = unit.controller
        if controller not in listings:
            listings[controller] = lists.recorded(store.find(run_id, lists.TAGS, unit.step), controller)
        listing = listings[controller]
        letters.append(
            DeadLetter(
                step=unit.step,
                item=unit.item,
                key=unit.key,
                attempts=known.attempts,
                failed_at=known.finished_at,
                error=known.error or _said(unit, known),
                value=listing.value(known.index) if listing is not None and known.index is not None else None,
                errors=tuple(errors.get(unit, ())),
            )
        )
    return letters


def _said(unit: UnitId, known: UnitState) -> Failure:
    """Return the failure of an item that a person marked as failed."""
    assert known.finished_at is not None
    return Failure(type="Marked", message=known.reason, step=unit.step, item=unit.item, at=known.finished_at)


def _meant(state: RunState, run_id: str, items: tuple[str, ...], step: str, error: str) -> list[UnitId]:
    units, unknown = select(state, items, step, error)
    if unknown:
        there = [str(unit) for unit in select(state)[0][:8]]
        raise UsageError(
            f"no item {unknown[0]!r} in the dead letter queue of run {run_id} (items: {', '.join(there) or 'none'})",
            hint=f"rerail dlq list {run_id}",
        )
    return units


@dlq.command(epilog="Example: rerail dlq show last chapter-7")
@run_argument(required=False)
@click.argument("items", nargs=-1, metavar="ITEM...")
@json_option("An array of items with all their errors.")
@store_option()
def show(run_name: str | None, items: tuple[str, ...], as_json: bool, store_url: str | None) -> int:
    """Show an item and all its errors."""
    store = open_store(store_url)
    run_id, items = _run_and_items(store, run_name, items)
    if not items:
        raise UsageError("no item named", hint=f"rerail dlq list {run_id}")
    letters = _letters(store, run_id, items, "", "")
    if as_json:
        print_json(letters)
        return 0
    for one in letters:
        lines = [f"item      {UnitId(one.step, one.item)}", f"value     {msgspec.json.encode(one.value).decode()}"]
        for number, failure in enumerate(one.errors or (one.error,), 1):
            at = failure.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
            where = f"{failure.step}: " if failure.step != one.step else ""
            lines.append(f"error {number}   {at}  {where}{failure.message}")
            shown = without_escapes(failure.traceback or failure.stderr_tail).splitlines()[-12:]
            lines += [f"  | {line}" for line in shown]
        item = shlex.quote(one.item) if not one.item.startswith("-") else f"-- {shlex.quote(one.item)}"
        lines.append(f"logs      rerail logs {run_id} {one.step} {item}")
        lines.append(f"next      rerail dlq retry {run_id} {item}")
        sys.stdout.write("\n".join(printable(line) for line in lines) + "\n\n")
    return 0


@dlq.command(cls=SectionedCommand, epilog="Example: rerail dlq retry last 'chapter-*'")
@run_argument()
@selecting
@changes_option()
@execute_options()
def retry(run_name: str, items: tuple[str, ...], step: str, error: str, store_url: str | None, **wishes: Any) -> int:
    """Retry items in the same run, then complete the map and everything after it."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    units = _meant(store.read(run_id).state, run_id, items, step, error)
    if not units:
        say(f"rerail: nothing to retry in the dead letter queue of run {run_id}")
        return 0
    return resume_run(store, run_id, ExecuteFlags.parse(retry=frozenset(units), **wishes))


@dlq.command(epilog="Example: rerail dlq drop last chapter-7")
@run_argument()
@selecting
@click.option("--yes", is_flag=True, help="Drop all items if none is named.")
@store_option()
def drop(run_name: str, items: tuple[str, ...], step: str, error: str, yes: bool, store_url: str | None) -> int:
    """Drop items: they count as skipped."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    units = _meant(store.read(run_id).state, run_id, items, step, error)
    if not (items or error or yes):
        raise UsageError(
            f"no item named ({len(units)} in the queue)", hint=f"rerail dlq drop {run_id} ITEM, or with --yes all"
        )
    interventions.drop_items(store, run_id, units, _who())
    say(
        f"rerail: dropped {len(units)} item{'' if len(units) == 1 else 's'}\n"
        f"  next: rerail resume {run_id}{store_flag(store)}"
    )
    return 0


@dlq.command(epilog="""Example: rerail dlq edit last chapter-7 --value '{"id": 7}'""")
@run_argument()
@click.argument("item")
@click.option("--value", metavar="JSON", help="The new value, instead of an editor.")
@store_option()
def edit(run_name: str, item: str, value: str | None, store_url: str | None) -> int:
    """Change an item; resume retries it with its new value."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    letters = _letters(store, run_id, (item,), "", "")
    if len(letters) != 1:
        raise UsageError(f"{item!r} is ambiguous: it matches {len(letters)} items", hint=f"rerail dlq list {run_id}")
    one = letters[0]
    text = value if value is not None else _edited(one.value)
    try:
        new = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"the new value is not JSON: {error}; nothing changed", hint="--value JSON") from None
    interventions.edit_item(store, run_id, UnitId(one.step, one.item), new, _who(), base_dir=store.base_dir)
    say(f"rerail: {UnitId(one.step, one.item)} changed\n  next: rerail resume {run_id}{store_flag(store)}")
    return 0


def _edited(value: Any) -> str:
    text = click.edit(msgspec.json.format(msgspec.json.encode(value)).decode(), extension=".json")
    if text is None:
        raise UsageError("the value was not changed", hint="--value JSON")
    return text


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
