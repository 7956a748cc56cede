"""Salvage: when a journal is damaged, go on from the newest state that can be proved, and keep the evidence.

Proved is a snapshot whose hash holds, or the part of a journal before its damage, here or among what earlier repairs put
aside. The newest becomes the base of a new segment, which a new checkpoint.json vouches for; only then are the damaged
files moved aside. Nothing is removed, and at every moment of it what is proved stands in two places.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from rerail import durable, processes
from rerail.core import formats
from rerail.core.checkpoint import Checkpoint, checkpoint_of, state_of
from rerail.core.events import Event, RunRepaired
from rerail.core.model import Pipeline, RunHeader
from rerail.core.state import RunState, apply, fold
from rerail.core.unit_id import UnitId
from rerail.errors import FormatTooNew, IllegalEvent, RunBusy, StateDamaged
from rerail.ports import Repair, Store
from rerail.stores import journal, segments, snapshots
from rerail.stores.housekeeping import HEADER
from rerail.stores.segments import Coverage, Opening, SegmentEnd
from rerail.version import VERSION

_STEP = re.compile(rb'"event":"step-\w+".*?"step":"([^"\\]+)"')
_SEQ = re.compile(rb'"seq":(\d{1,18}),')


def repair(store: Store, run_id: str) -> Repair:
    """Make a damaged run resumable again; raises StateDamaged if nothing can be proved, RunBusy if it is owned."""
    path = store.directory(run_id)
    store.ownership(run_id)  # raises RunNotFound
    try:
        lock = durable.Lock(os.path.join(path, "lock"))
    except BlockingIOError:
        raise RunBusy(f"run {run_id} is owned by a live process", hint=f"rerail show {run_id}") from None
    try:
        store.read(run_id)
    except FormatTooNew:
        raise
    except StateDamaged as damage:
        return _repair(path, run_id, damage.message)
    finally:
        lock.release()
    return Repair(reason="")


def _repair(path: str, run_id: str, reason: str) -> Repair:
    header, state, source = _best(path, run_id)
    now = datetime.now(UTC)
    number = _next_number(path, run_id)
    evidence = f"evidence-{number:04d}"
    base = checkpoint_of(header, Pipeline(name=header.pipeline, steps=()), state, "manual")
    opening = Opening(
        format=formats.JOURNAL.version,
        rerail=VERSION,
        segment=number,
        header=header,
        after=SegmentEnd(segment=0, length=0, seq=state.seq, sum=journal.first_sum(run_id)),
        reason=reason,
        base=base,
    )
    event = RunRepaired(
        at=now,
        owner=processes.identity(now),
        reason=reason,
        evidence=evidence,
        suspects=_suspects(path, state),
    )
    head, sum_ = journal.encode_line(msgspec.json.encode(opening), journal.first_sum(run_id), state.seq, state.seq)
    body, last_sum = journal.encode([event], sum_, state.seq + 1, state.seq)
    damaged = [segments.file_name(old) for old in segments.numbers(path)]
    # The new segment stands by itself, so a crash between here and the end leaves a run that can be read.
    durable.write_new(os.path.join(path, segments.file_name(number)), head + body)
    durable.sync_dir(path)
    durable.make_dir(os.path.join(path, evidence))
    covered = Coverage(
        segment=number,
        seq=state.seq + 1,
        sum=last_sum,
        offset=len(head + body),
        sha256={str(number): hashlib.sha256(head + body).hexdigest()},
    )
    apply(state, state.seq + 1, event)
    saved = checkpoint_of(header, Pipeline(name=header.pipeline, steps=()), state, "manual")
    _save(path, evidence, snapshots.encode(saved, covered))
    segments.record_newest(path, number)
    for name in damaged:
        with contextlib.suppress(FileNotFoundError):
            durable.move_file(os.path.join(path, name), os.path.join(path, evidence, name))
    if _header_file(path) != header:
        with contextlib.suppress(FileNotFoundError):
            durable.move_file(os.path.join(path, HEADER), os.path.join(path, evidence, HEADER))
        durable.replace_file(os.path.join(path, HEADER), msgspec.json.format(msgspec.json.encode(header)))
    return Repair(reason=reason, source=source, seq=base.internal.seq, evidence=os.path.join(path, evidence))


def _save(path: str, evidence: str, data: bytes) -> None:
    """Put a checkpoint in place before anything else is touched; the one that was there is kept with the evidence."""
    place, kept = os.path.join(path, snapshots.FILE_NAME), os.path.join(path, evidence, snapshots.FILE_NAME)
    with contextlib.suppress(OSError):
        durable.replace_file(kept, durable.read_file(place))
    if os.path.lexists(place) and not os.path.isfile(place):
        durable.move_file(place, kept)
    durable.replace_file(place, data)


def _next_number(path: str, run_id: str) -> int:
    """Return the number of a segment that never existed: not even one that is lost and still referred to."""
    known = [*segments.numbers(path), segments.recorded_newest(path), *(number for number, _ in segments.evidence(path))]
    for place in _places(path):
        known += [covered.segment for _, _, covered in _snapshots(place, run_id)]
    return max(known, default=0) + 1


def _places(path: str) -> list[str]:
    """List the places with provable state: the run directory, and the evidence of earlier repairs, newest first."""
    return [path, *(place for _, place in reversed(segments.evidence(path)))]


def _suspects(path: str, state: RunState) -> tuple[str, ...]:
    """Find steps of records that are given up: their states cannot be proved any more."""
    found: dict[str, None] = {}
    for number in segments.numbers(path):
        data = durable.read_file(os.path.join(path, segments.file_name(number)))
        for line in io.BytesIO(data):
            step = _STEP.search(line)
            seq = _SEQ.search(line)
            if step and (seq is None or int(seq[1]) > state.seq):
                found[step[1].decode(errors="replace")] = None
    return tuple(step for step in found if state.unit(UnitId(step)).status != "completed")


def _best(path: str, run_id: str) -> tuple[RunHeader, RunState, str]:
    """Return the newest state that can be proved, with where it came from."""
    header: RunHeader | None = None
    candidates: list[tuple[int, RunState, str]] = []
    for place in _places(path):
        found = "" if place == path else os.path.basename(place)
        kept: dict[int, segments.Segment] = {}  # there may be many checkpoints, and gigabytes of journal
        lines, opening = segments.salvage(place, run_id, kept=kept)
        header = header or (opening.header if opening else _header_file(place))
        if lines:
            base = state_of(opening.base) if opening and opening.base else None
            state = _folded(lines, base)
            candidates.append((state.seq, state, f"the journal before the damage{found and f', in {found}'}"))
        for name, checkpoint, covered in _snapshots(place, run_id):
            # What follows the snapshot may be whole although something before it is not.
            later, _ = segments.salvage(place, run_id, covered, kept)
            state = _folded(later, state_of(checkpoint))
            source = os.path.join(found, name)
            candidates.append((state.seq, state, f"{source} and the journal after it" if later else source))
            header = header or _header_from(checkpoint)
    if not candidates or header is None:
        raise StateDamaged(
            f"{path}: neither the journal nor any checkpoint is intact; nothing changed",
            hint="rerail run PIPELINE --fresh",
        )
    _, state, source = max(candidates, key=lambda candidate: candidate[0])
    return header, state, source


def _folded(lines: list[tuple[int, bytes]], start: RunState | None) -> RunState:
    """Return the state after all records that can be true: up to the first that cannot have happened."""
    state = RunState() if start is None else start
    with contextlib.suppress(IllegalEvent):
        fold(_decodable(lines), state)
    return state


def _decodable(lines: list[tuple[int, bytes]]) -> Iterator[tuple[int, Event]]:
    with contextlib.suppress(journal.Undecodable):
        yield from journal.decode_all(lines)


def _snapshots(path: str, run_id: str) -> list[tuple[str, Checkpoint, Coverage]]:
    names = [snapshots.FILE_NAME]
    with contextlib.suppress(OSError):
        names += [os.path.join("history", entry) for entry in sorted(os.listdir(os.path.join(path, "history")))]
    found = []
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            checkpoint, covered = snapshots.decode(durable.read_file(os.path.join(path, name)))
            if checkpoint.run_id == run_id:
                found.append((name, checkpoint, covered))
    return found


def _header_file(path: str) -> RunHeader | None:
    try:
        return msgspec.json.decode(durable.read_file(os.path.join(path, HEADER)), type=RunHeader)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _header_from(checkpoint: Checkpoint) -> RunHeader:
    return RunHeader(
        format=formats.HEADER.version,
        run_id=checkpoint.run_id,
        pipeline=checkpoint.pipeline,
        pipeline_path=checkpoint.pipeline_path,
        work_dir=checkpoint.work_dir,
        created_at=checkpoint.created_at,
        rerail=VERSION,
        params=checkpoint.params,
        labels=checkpoint.labels,
        options=checkpoint.options,
        pipeline_type=checkpoint.pipeline_type,
        parent=checkpoint.parent,
    )
