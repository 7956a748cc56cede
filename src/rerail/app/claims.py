"""Claims of live runs: no two runs of a store write one path at the same time.

A claim counts while the owner of its run is alive; that of a dead one is ignored, and removed by the next run. A
released one is kept as long as a run is alive that overlapped it: files written then may be its work. Claims are
numbered, so that the overlap of two runs does not depend on a clock that can be set.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from rerail.app.masking import present_secrets
from rerail.core.claims import Claim, ClaimRecord, claims_of, first_meeting
from rerail.core.expressions.language import ExpressionError, Scope
from rerail.core.expressions.render import pattern
from rerail.core.model import Pipeline, RunHeader
from rerail.core.state import RunState
from rerail.errors import RerailError, RunBusy, RunNotFound, StateUnwritable
from rerail.ports import Store


class Claims:
    """Claims of the live runs of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._table = store.claims
        self._mine: ClaimRecord | None = None

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Lock the table of claims while the context is active: two simultaneous starts see each other."""
        return self._table.locked()

    def reject_conflicts(self, run_id: str, claims: Sequence[Claim], *, command: str) -> None:
        """Reject claims that conflict with those of a live run; raise RunBusy. Under `alone`."""
        for other in self._others(run_id):
            if other.until is not None or not self._is_live(other.run_id):
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
        """Claim paths for an owned run; drop claims that no live run can have overlapped. Under `alone`."""
        others = self._others(run_id)
        self._mine = ClaimRecord(run_id=run_id, number=_newest(others) + 1, claims=list(claims))
        self._table.write(self._mine)
        live = [one for one in others if one.until is None and self._is_live(one.run_id)]
        oldest = min((one.number for one in live), default=self._mine.number)
        for one in others:
            if one in live:
                continue
            # A dead owner could not say when it ended: some time before this run began.
            until = _newest(others) if one.until is None else one.until
            if until < oldest:
                self._table.remove(one.run_id)
            elif one.until is None:
                with contextlib.suppress(StateUnwritable):
                    self._table.write(msgspec.structs.replace(one, until=until))

    def release(self) -> None:
        """Release the paths: others may write there now. The rest of the claim is for runs that overlapped it."""
        mine, self._mine = self._mine, None
        if mine is None:
            return
        with contextlib.suppress(StateUnwritable):
            others = self._others(mine.run_id)
            if any(one.until is None and self._is_live(one.run_id) for one in others):
                self._table.write(msgspec.structs.replace(mine, until=max(_newest(others), mine.number)))
            else:
                self._table.remove(mine.run_id)

    def contested(self, paths: Sequence[str], since: datetime) -> str:
        """Return why the files at these paths may be another run's, or '' if no other can have written them since."""
        if self._mine is None:
            return ""
        mine = [Claim(step="", path=path) for path in paths]
        for other in self._others(self._mine.run_id):
            if other.until is not None and other.until < self._mine.number:
                continue  # it had released them before this run began
            meeting = first_meeting(mine, other.claims)
            if meeting is not None and self._wrote(other.run_id, meeting[1].step, since):
                return (
                    f"{meeting[0].path} may be that of run {other.run_id}: its step {meeting[1].step}, which writes it"
                    " too, ran at the same time"
                )
        return ""

    def _wrote(self, run_id: str, step: str, since: datetime) -> bool:
        """Return whether a step of another run may have written something since."""
        try:
            state: RunState = self._store.read(run_id).state
        except RerailError:
            return True  # unknown
        units = [unit for (path, _), unit in state.units.items() if path == step or path.startswith(step + "/")]
        return any(unit.status == "running" or (unit.finished_at and unit.finished_at >= since) for unit in units)

    def _is_live(self, run_id: str) -> bool:
        try:
            return self._store.ownership(run_id).alive
        except RunNotFound:
            return False  # deleted before its claim was

    def _others(self, run_id: str) -> list[ClaimRecord]:
        return [record for record in self._table.records() if record.run_id != run_id]


def _newest(entries: Sequence[ClaimRecord]) -> int:
    return max((one.number if one.until is None else one.until for one in entries), default=0)


def _shown(claim: Claim) -> str:
    where = os.path.relpath(claim.path)
    return where if claim.end is None else f"{where}…{claim.end}"


class PathClaims:
    """Paths that a run claims while this process executes it; free of cost if it claims none."""

    def __init__(
        self, store: Store, pipeline: Pipeline, header: RunHeader, work_dir: str, *, allow_concurrent: bool
    ) -> None:
        run_dir = store.directory(header.run_id)
        scope = Scope(params=header.params, env=os.environ, steps={}, run={"id": header.run_id, "dir": run_dir})

        def render(text: str) -> str | None:
            try:
                return pattern(text, scope)
            except ExpressionError:
                return None

        self._run_id = header.run_id
        self._allow_concurrent = allow_concurrent
        self._mine = claims_of(pipeline, os.path.realpath(work_dir), render)
        secret = present_secrets(pipeline, header.options)
        self._mine = [
            claim for claim in self._mine if secret.value(claim.path) == claim.path
        ]  # refused when it is sealed
        self._claims: Claims | None = None
        if self._mine:
            self._claims = Claims(store)
        self._work_dir = work_dir

    @contextlib.contextmanager
    def claimed(self, command: str) -> Iterator[None]:
        """Claim the paths while the context is active; raise RunBusy before it if a live run may write one of them."""
        if self._claims is None:
            yield
            return
        with self._claims.alone():
            if not self._allow_concurrent:
                self._claims.reject_conflicts(self._run_id, self._mine, command=command)
            yield
            self._claims.put(self._run_id, self._mine)

    def contested(self, paths: Sequence[str], since: datetime) -> str:
        """Return why the files at these paths may be another run's, or '' if no other can have written them since."""
        if self._claims is None:
            return ""
        root = os.path.realpath(self._work_dir)
        return self._claims.contested([os.path.normpath(os.path.join(root, path)) for path in paths], since)

    def release(self) -> None:
        if self._claims is not None:
            self._claims.release()
