"""The claims of live runs: a file for each, so that no two runs of a store write one path at the same time.

A claim counts while the owner of its run lives; what a dead one left is ignored, and removed by whoever comes next. One
that was released is kept as long as a run lives that overlapped it: what was written then may be its work. Claims are
numbered, so that who overlapped whom does not depend on a clock that somebody sets.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from rerail import durable
from rerail.core.claims import Claim, first_meeting
from rerail.core.state import RunState
from rerail.durable.copies import SharedLock
from rerail.errors import RerailError, RunBusy, StateUnwritable
from rerail.ports import Store


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one run claims. If it has let go, those with a higher number than `until` came after that."""

    run_id: str
    number: int
    claims: list[Claim]
    until: int | None = None


_decode = msgspec.json.Decoder(ClaimRecord).decode


class Claims:
    """The claims of the live runs of a store."""

    def __init__(self, store: Store, run_dir: str) -> None:
        self._store = store
        self._directory = os.path.join(os.path.dirname(os.path.dirname(run_dir)), "claims")
        self._mine: ClaimRecord | None = None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While this lasts nobody else asks or claims: two runs that start at once see each other."""
        try:
            durable.make_dir(self._directory)
            lock = SharedLock(os.path.join(self._directory, "lock"), alone=True, wait=True)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            yield
        finally:
            lock.release()

    def reject_conflicts(self, run_id: str, claims: Sequence[Claim], *, command: str) -> None:
        """Raise RunBusy if a live run claims what this one would write. Under `alone`."""
        for other in self._others(run_id):
            if other.until is not None or not self._store.ownership(other.run_id).alive:
                continue
            meeting = first_meeting(claims, other.claims)
            if meeting is not None:
                mine, theirs = meeting
                raise RunBusy(
                    f"run {other.run_id} is live and may write {_shown(theirs)} (step {theirs.step}),"
                    f" which step {mine.step} of this run writes too",
                    hint=f"rerail watch {other.run_id}, or {command} --allow-concurrent",
                )

    def put(self, run_id: str, claims: Sequence[Claim]) -> None:
        """Claim paths for a run that this process owns; drop what no live run can have overlapped. Under `alone`."""
        others = self._others(run_id)
        self._mine = ClaimRecord(run_id=run_id, number=_newest(others) + 1, claims=list(claims))
        try:
            durable.remove_temporaries(self._directory)  # of processes that were killed
            self._write(self._mine)
        except OSError as error:
            raise self._unwritable(error) from error
        live = [one for one in others if one.until is None and self._store.ownership(one.run_id).alive]
        oldest = min((one.number for one in live), default=self._mine.number)
        for one in others:
            if one in live:
                continue
            # A dead owner could not say when it ended: some time before this run began.
            until = _newest(others) if one.until is None else one.until
            if until < oldest:
                self._remove(one.run_id)
            elif one.until is None:
                with contextlib.suppress(OSError):
                    self._write(msgspec.structs.replace(one, until=until))

    def release(self) -> None:
        """Let go: others may write there now. What is left of the claim is for those who were there at the same time."""
        mine, self._mine = self._mine, None
        if mine is None:
            return
        with contextlib.suppress(OSError):
            others = self._others(mine.run_id)
            if any(one.until is None and self._store.ownership(one.run_id).alive for one in others):
                self._write(msgspec.structs.replace(mine, until=max(_newest(others), mine.number)))
            else:
                self._remove(mine.run_id)

    def contested(self, paths: Sequence[str], since: datetime) -> str:
        """Why it cannot be told whose the files at these paths are; '' if nobody else can have written them since."""
        if self._mine is None:
            return ""
        mine = [Claim(step="", path=path) for path in paths]
        for other in self._others(self._mine.run_id):
            if other.until is not None and other.until < self._mine.number:
                continue  # it had let go before this run began
            meeting = first_meeting(mine, other.claims)
            if meeting is not None and self._wrote(other.run_id, meeting[1].step, since):
                return (
                    f"{meeting[0].path} may be that of run {other.run_id}: its step {meeting[1].step}, which writes it"
                    " too, ran at the same time"
                )
        return ""

    def _wrote(self, run_id: str, step: str, since: datetime) -> bool:
        """Whether a step of another run may have written something since."""
        try:
            state: RunState = self._store.read(run_id).state
        except RerailError:
            return True  # nobody can tell
        units = [unit for (path, _), unit in state.units.items() if path == step or path.startswith(step + "/")]
        return any(unit.status == "running" or (unit.finished_at and unit.finished_at >= since) for unit in units)

    def _others(self, run_id: str) -> list[ClaimRecord]:
        found = []
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self._directory)):
                if name.endswith(".json") and name != f"{run_id}.json":
                    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
                        found.append(_decode(durable.read_file(os.path.join(self._directory, name))))
        return found

    def _write(self, entry: ClaimRecord) -> None:
        durable.replace_cache(self._path(entry.run_id), msgspec.json.encode(entry))

    def _remove(self, run_id: str) -> None:
        with contextlib.suppress(OSError):
            durable.remove_file(self._path(run_id))

    def _unwritable(self, error: OSError) -> StateUnwritable:
        what = f"{self._directory}: cannot be written: {error.strerror}"
        return StateUnwritable(what, hint="the same command, once it can be")

    def _path(self, run_id: str) -> str:
        return os.path.join(self._directory, f"{run_id}.json")


def _newest(entries: Sequence[ClaimRecord]) -> int:
    return max((one.number if one.until is None else one.until for one in entries), default=0)


def _shown(claim: Claim) -> str:
    where = os.path.relpath(claim.path)
    return where if claim.end is None else f"{where}…{claim.end}"
