"""The ledger: the cost, tokens and time of every attempt, from the journal, and sums of them. Pure.

An attempt is counted once: it ends in one record, completed, failed or interrupted, whatever comes after. Of one that
has not ended, or whose invocation was killed and not resumed yet, its saved progress counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Literal

import msgspec

from rerail.core import events as ev
from rerail.core.events import AttemptProgress, Event, Metrics
from rerail.core.money import COST, added, plus
from rerail.core.run_state import RunState
from rerail.core.unit_id import UnitId
from rerail.core.values import Usage

By = Literal["step", "item", "model", "day", "run", "pipeline"]
Status = Literal["completed", "failed", "interrupted", "running"]  # running: as far as its progress was saved
_AttemptEvent = (
    ev.StepStarted | ev.StepProgressed | ev.StepInterrupted | ev.StepFailed | ev.StepCompleted
)  # about an attempt
UNKNOWN_MODEL = "(no model)"


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one attempt, or the share of one model in it."""

    run_id: str
    pipeline: str
    at: datetime
    step: str = ""
    item: str | None = None
    attempt: int = 0
    status: Status
    seconds: float = 0.0
    metrics: Metrics = {}
    models: dict[str, Metrics] = {}

    @property
    def unit(self) -> UnitId:
        return UnitId(self.step, self.item)


class Sum(msgspec.Struct, kw_only=True):
    """Total usage of some attempts."""

    name: str
    attempts: int = 0
    failed: int = 0  # failed and interrupted ones
    seconds: float = 0.0
    metrics: Metrics = {}

    @property
    def cost_usd(self) -> float:
        return self.metrics.get(COST, 0)


def entries(run_id: str, pipeline: str, records: Iterable[tuple[int, Event]]) -> Iterator[LedgerEntry]:
    """Yield every attempt of a run in the order of time, then those that have not ended."""
    running: dict[UnitId, LedgerEntry] = {}
    outer: set[UnitId] = set()  # controllers: the units inside them report their own usage
    for _, event in records:
        if isinstance(event, ev.ItemsListed):
            outer.add(event.unit)
        elif isinstance(event, ev.StepInvalidated):  # announced, and never launched
            running.pop(event.unit, None)
        if not isinstance(event, _AttemptEvent):
            continue
        outer.update(event.unit.ancestors())
        entry = _entry(run_id, pipeline, event)
        if entry.status == "running":
            running[event.unit] = entry
        else:
            running.pop(event.unit, None)
            if entry.metrics or event.unit not in outer:
                yield entry
    yield from (entry for entry in running.values() if entry.metrics or entry.unit not in outer)


def _entry(run_id: str, pipeline: str, event: _AttemptEvent) -> LedgerEntry:
    match event:
        case ev.StepCompleted():
            status: Status = "completed"
            seconds = event.duration
        case ev.StepFailed():
            status, seconds = "failed", event.duration
        case ev.StepInterrupted():
            status, seconds = "interrupted", event.elapsed
        case ev.StepProgressed():
            status, seconds = "running", event.elapsed
        case _:
            status, seconds = "running", 0.0
    used = Usage() if isinstance(event, ev.StepStarted) else Usage(metrics=event.metrics, models=event.models)
    return LedgerEntry(
        run_id=run_id,
        pipeline=pipeline,
        at=event.at,
        step=event.step,
        item=event.item,
        attempt=event.attempt,
        status=status,
        seconds=seconds,
        metrics=used.metrics,
        models=used.models,
    )


def with_interrupted(
    ledger: Iterable[LedgerEntry], state: RunState, seen: Mapping[UnitId, AttemptProgress], like: LedgerEntry
) -> list[LedgerEntry]:
    """Return the attempts of a run without an owner: those that have not ended count as interrupted.

    Their usage is the progress last seen (`seen`). `like` is an entry with the run and pipeline to copy.
    """
    running: dict[UnitId, LedgerEntry] = {}
    result = []
    for entry in ledger:
        if entry.status == "running":
            running[entry.unit] = msgspec.structs.replace(entry, status="interrupted")
        else:
            result.append(entry)
    for unit, progress in seen.items():
        if unit in running or progress.metrics:
            interrupted = LedgerEntry(
                run_id=like.run_id,
                pipeline=like.pipeline,
                at=progress.at,
                step=unit.step,
                item=unit.item,
                attempt=state.unit(unit).attempts,
                status="interrupted",
                seconds=progress.elapsed,
                metrics=progress.metrics,
                models=progress.models,
            )
            running[unit] = interrupted
    return [*result, *running.values()]


def discarded(ledger: Iterable[LedgerEntry], state: RunState, like: LedgerEntry) -> list[LedgerEntry]:
    """Return an entry for spending whose records a repair had to discard, if there is any.

    The attempts that spent it are no longer known.
    """
    recorded = overall(entry for entry in ledger if entry.status != "running").metrics
    rest = {metric: plus(value, -recorded.get(metric, 0)) for metric, value in state.spent.items()}
    if not any(rest.values()):
        return []
    return [msgspec.structs.replace(like, step="(before a repair)", metrics=rest)]


def summed(ledger: Iterable[LedgerEntry], by: By, zone: tzinfo | None = UTC) -> list[Sum]:
    """Sum entries by `by`: days of a zone in their order, else highest cost first. No zone: this machine's."""
    sums: dict[str, Sum] = {}
    for entry in ledger:
        if by == "model":
            _add_models(sums, entry)
        elif by == "day":
            _add(sums, entry.at.astimezone(zone).date().isoformat(), entry, entry.metrics)
        else:
            _add(sums, _KEYS[by](entry), entry, entry.metrics)
    if by == "day":
        return [sums[day] for day in sorted(sums)]
    return sorted(sums.values(), key=lambda sum_: -sum_.cost_usd)


def overall(ledger: Iterable[LedgerEntry]) -> Sum:
    """Return the sum of all entries."""
    result = Sum(name="total")
    for entry in ledger:
        _count(result, entry, entry.metrics)
    return result


_KEYS: dict[str, Callable[[LedgerEntry], str]] = {
    "step": lambda entry: entry.step,
    "item": lambda entry: str(entry.unit),  # an iteration of a loop is one too
    "run": lambda entry: entry.run_id,
    "pipeline": lambda entry: entry.pipeline,
}


def _add_models(sums: dict[str, Sum], entry: LedgerEntry) -> None:
    rest = dict(entry.metrics)
    for model, metrics in entry.models.items():
        _add(sums, model, entry, metrics)
        for metric, value in metrics.items():
            rest[metric] = plus(rest.get(metric, 0), -value)
    if any(rest.values()):
        _add(sums, UNKNOWN_MODEL, entry, rest)


def _add(sums: dict[str, Sum], key: str, entry: LedgerEntry, metrics: Metrics) -> None:
    _count(sums.setdefault(key, Sum(name=key)), entry, metrics)


def _count(total: Sum, entry: LedgerEntry, metrics: Metrics) -> None:
    total.attempts += 1
    total.failed += entry.status in ("failed", "interrupted")
    total.seconds += entry.seconds
    total.metrics = added(total.metrics, metrics)
