"""Acceptance of edited artifacts: a person keeps a file as it is, and its new digest is the recorded product."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

import msgspec

from rerail.app.planning import ResumePlan
from rerail.core.audit import EDITED, Flaw
from rerail.core.events import ArtifactRecord, ArtifactsAccepted, Cause, Event
from rerail.core.plan import Plan
from rerail.core.planner import plan, step_at, step_index
from rerail.core.state import fold
from rerail.core.unit_id import UnitId, outer_step
from rerail.errors import UsageError
from rerail.ports import ContentStore, RunWriter, Store

Record = Callable[[Store, RunWriter, list[Event]], None]  # appends events to an owned run
Accepted = Mapping[UnitId, Collection[str]]  # unit → recorded paths of its artifacts


def is_acceptable(unit: UnitId) -> bool:
    """Return whether an edit of an artifact of a unit can be accepted: no step beside it in an item depends on it."""
    return not outer_step(unit.step)


def edited_flaws(ready: ResumePlan) -> dict[UnitId, list[Flaw]]:
    """Return the edited artifacts that a plan would restore or make again, if the edits can be accepted."""
    found: dict[UnitId, list[Flaw]] = {}
    for decision in ready.plan.everything:
        is_lost = decision.because is not None and decision.because.kind == "artifact"
        if not (decision.kept or is_lost) or not is_acceptable(decision.unit):
            continue
        for flaw in ready.audit.flaws.get(decision.unit, ()):
            if flaw.condition in EDITED and flaw.entry.kind == "file" and not (flaw.temporary or flaw.later):
                found.setdefault(decision.unit, []).append(flaw)
    return found


def accept(
    ready: ResumePlan, wanted: Accepted, by: str, content: ContentStore | None = None, staging: str = ""
) -> list[ArtifactsAccepted]:
    """Seal artifacts as they are now and return the events that accept them; raise UsageError if one is not valid.

    Without a content store nothing is copied.
    """
    from rerail.artifacts.audit import declared_of  # only for runs with edited artifacts
    from rerail.artifacts.paths import to_path
    from rerail.artifacts.seal import ArtifactInvalid, SealEnv, seal

    index, state = step_index(ready.pipeline), ready.recording.state
    means = SealEnv(place=ready.place, content=content, staging=staging, mask=ready.mask)
    events: list[ArtifactsAccepted] = []
    for unit, paths in wanted.items():
        step, records = step_at(index, unit), state.unit(unit).artifacts
        sealed: dict[str, ArtifactRecord] = {}
        for record in records:
            if record.path not in paths:
                continue
            declared = declared_of(step, record) if step is not None else None
            if declared is None:
                raise UsageError(f"{record.path} is no longer an artifact of {unit}", hint=f"rerail plan {ready.run_id}")
            try:
                (new,) = seal(
                    [msgspec.structs.replace(declared, path=to_path(record.path), optional=False)], means
                ).records
            except (ArtifactInvalid, OSError) as error:
                hint = f"fix it, or: rerail resume {ready.run_id}"
                raise UsageError(f"{record.path} of {unit} cannot be accepted: {error}", hint=hint) from None
            if new.product != record.product:
                sealed[record.path] = new.with_internal(position=record.internal.position)
        if sealed:
            events.append(
                ArtifactsAccepted(
                    at=datetime.now(UTC),
                    step=unit.step,
                    item=unit.item,
                    by=by,
                    was={record.path: record.sha256 for record in records if record.path in sealed},
                    artifacts=tuple(sealed.get(record.path, record) for record in records),
                )
            )
    return events


def accept_now(ready: ResumePlan, wanted: Accepted, by: str, store: Store, log: RunWriter, record: Record) -> int:
    """Seal, copy and `record` edited artifacts of an owned run; return how many units changed.

    No copy is collected until the event that names it is durable. Killed before that, nothing is accepted and every file
    is as it was.
    """
    with contextlib.ExitStack() as until:
        events = accept(ready, wanted, by, store.content, until.enter_context(log.staging()))
        if events:
            record(store, log, list(events))
    return len(events)


def preview(ready: ResumePlan) -> ResumePlan:
    """Return the plan of a resume that keeps all edited artifacts. Changes nothing."""
    edits = edited_flaws(ready)
    if not edits:
        return ready
    wanted = {unit: {flaw.artifact for flaw in flaws} for unit, flaws in edits.items()}
    state = copy.deepcopy(ready.recording.state)
    fold(enumerate(accept(ready, wanted, ""), state.seq + 1), state)
    remaining = {
        unit: tuple(flaw for flaw in flaws if flaw.artifact not in wanted.get(unit, ()))
        for unit, flaws in ready.audit.flaws.items()
    }
    audit = msgspec.structs.replace(ready.audit, flaws={unit: flaws for unit, flaws in remaining.items() if flaws})
    again = plan(ready.pipeline, state, audit, ready.wishes)
    return msgspec.structs.replace(ready, audit=audit, plan=as_kept(again, edits))


def as_kept(decisions: Plan, kept: Mapping[UnitId, Collection[Flaw]]) -> Plan:
    """Return a plan that says which steps are kept with the edits of a person."""
    return msgspec.structs.replace(
        decisions,
        decisions=tuple(
            msgspec.structs.replace(
                made,
                decision="keep",
                reason=", ".join(flaw.words for flaw in list(kept[made.unit])[:3]),
                because=Cause(kind="accepted", path=next(iter(kept[made.unit])).path),
            )
            if made.unit in kept and made.decision == "reuse"
            else made
            for made in decisions.decisions
        ),
    )


def recorded_paths(ready: ResumePlan, unit: UnitId, given: Collection[str]) -> set[str]:
    """Return the artifacts of a completed unit that a person named; raise UsageError for another path."""
    from rerail.artifacts.paths import to_path  # only for runs with edited artifacts

    known = ready.recording.state.unit(unit)
    if known.status != "completed":
        raise UsageError(f"{unit} is {known.status}: only a completed step has artifacts to accept", hint="drop --accept")
    if not is_acceptable(unit):
        hint = f"rerail mark {ready.run_id} '{unit}' pending"
        raise UsageError(f"{unit} is inside {outer_step(unit.step)}, whose steps may depend on the file", hint=hint)
    found = set()
    for path in given:
        full = os.path.abspath(path)
        match = [
            record.path
            for record in known.artifacts
            if path == record.path or os.path.normpath(os.path.join(ready.place.work_dir, to_path(record.path))) == full
        ]
        if not match:
            there = ", ".join(record.path for record in known.artifacts) or "none"
            raise UsageError(f"{path} is no artifact of {unit} (artifacts: {there})", hint=f"rerail show {ready.run_id}")
        found.update(match)
    return found
