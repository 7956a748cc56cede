"""Claims of live runs: no two runs of a store write one path, or hold one concurrency group, at the same time.

A claim counts while the owner of its run is alive; that of a dead one is ignored, and removed by the next run. A
released one is kept as long as a run is alive that overlapped it: files written then may be its work. Claims are
numbered, so that the overlap of two runs does not depend on a clock that can be set.

A run that waits for its group is owned and has a record with its turn, so it dies like any other run: its turn is over
once its owner is dead. The run with the earliest turn takes the group as soon as the holder has released it or is dead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from rerail import processes
from rerail.app.masking import present_secrets
from rerail.app.stop import OutOfReach, signal_owner
from rerail.app.traces import process_tag_in
from rerail.core.claims import Claim, ClaimRecord, before_in_group, claims_of, first_meeting
from rerail.core.events import Owner
from rerail.core.expressions import language
from rerail.core.expressions.language import ExpressionError, Scope
from rerail.core.expressions.render import pattern
from rerail.core.model import Pipeline, RunHeader
from rerail.core.state import RunState
from rerail.core.unit_id import is_step_within
from rerail.errors import RerailError, RunBusy, RunNotFound, StateUnwritable, UsageError, WaitStopped
from rerail.ports import RunWriter, Store
from rerail.text import one_line

WAIT_SECONDS = 0.1  # between two looks at the group
MAX_GROUP = 200  # characters


class Claims:
    """Claims of the live runs of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._table = store.claims
        self._mine: ClaimRecord | None = None

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Lock the table of claims while the context is active: two simultaneous starts see each other."""
        return self._table.locked()

    def check_conflicts(self, run_id: str, claims: Sequence[Claim], *, command: str) -> None:
        """Reject claims that conflict with those of a live run; raise RunBusy. Under `alone`."""
        for other in self._others(run_id):
            if other.until is not None or not self.is_live(other.run_id):
                continue
            meeting = first_meeting(claims, other.claims)
            if meeting is not None:
                mine, theirs = meeting
                raise RunBusy(
                    f"run {other.run_id} is live and may write {_shown(theirs)} (step {theirs.step}),"
                    f" which step {mine.step} of this run writes too",
                    hint=f"rerail watch {other.run_id}, or {command} --allow-concurrent",
                )

    def before(self, run_id: str, group: str) -> list[ClaimRecord]:
        """Return the records of live runs that come before this one in a concurrency group: its holder first."""
        turn = self._mine.number if self._mine is not None else None
        return [one for one in before_in_group(group, turn, self._others(run_id)) if self.is_live(one.run_id)]

    def end_leftovers(self, run_id: str, group: str) -> None:
        """End the processes that a dead holder of a group has left behind: they are part of its run. Under `alone`."""
        for one in before_in_group(group, 0, self._others(run_id)):
            tag = "" if self.is_live(one.run_id) else process_tag_in(self._store, one.run_id)
            if tag:
                processes.kill_tagged(tag, pauses=(0.005,))  # one that was just being started is visible a moment later

    def queue(self, run_id: str, group: str) -> None:
        """Take the next turn in a concurrency group, for an owned run. Under `alone`."""
        number = _newest(self._others(run_id)) + 1
        self._mine = ClaimRecord(run_id=run_id, number=number, claims=[], group=group, waiting=True)
        self._table.write(self._mine)

    def put(self, run_id: str, claims: Sequence[Claim], group: str = "") -> None:
        """Claim paths and a group for an owned run; drop claims that no live run can have overlapped. Under `alone`."""
        others = self._others(run_id)
        self._mine = ClaimRecord(run_id=run_id, number=_newest(others) + 1, claims=list(claims), group=group)
        self._table.write(self._mine)
        live = [one for one in others if one.until is None and self.is_live(one.run_id)]
        oldest = min((one.number for one in live if not one.waiting), default=self._mine.number)
        for one in others:
            if one in live:
                continue
            if one.waiting:
                self._table.remove(one.run_id)
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
            others = [] if mine.waiting else self._others(mine.run_id)
            if any(one.until is None and not one.waiting and self.is_live(one.run_id) for one in others):
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
        units = [record for unit, record in state.units.items() if is_step_within(unit.step, step)]
        return any(unit.status == "running" or (unit.finished_at and unit.finished_at >= since) for unit in units)

    def is_live(self, run_id: str) -> bool:
        """Return whether a process owns a run now, and the run was not deleted."""
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


def concurrency_group(pipeline: Pipeline, header: RunHeader) -> str:
    """Return the concurrency group of a run, '' if it has none; raise UsageError if it cannot be evaluated."""
    if pipeline.concurrency is None:
        return ""
    names = {"pipeline": {"name": pipeline.name}}
    scope = Scope(params=header.params, env=os.environ, steps={}, run={"id": header.run_id}, more=names)
    hint = "correct `concurrency` in the pipeline file"
    try:
        group = language.render(pipeline.concurrency.group, scope).strip()
    except ExpressionError as error:
        raise UsageError(f"`concurrency`: {error}", hint=hint) from None
    if not group or len(group) > MAX_GROUP or group != one_line(group, MAX_GROUP):
        what = "is empty" if not group else f"is not one line of at most {MAX_GROUP} characters"
        raise UsageError(f"`concurrency`: the name of the group {what}", hint=hint)
    if present_secrets(pipeline, header.options).value(group) != group:
        raise UsageError("`concurrency`: the name of the group holds a secret, and it is recorded", hint=hint)
    return group


def waits_for(store: Store, run_id: str) -> str:
    """Describe the runs that a run which has not begun waits for; '' if it is not waiting for its concurrency group."""
    records = store.claims.records()
    mine = next((one for one in records if one.run_id == run_id and one.waiting), None)
    if mine is None:
        return ""
    claims = Claims(store)
    others = before_in_group(mine.group, mine.number, (one for one in records if one.run_id != run_id))
    return _waiting_text([one for one in others if claims.is_live(one.run_id)], store, mine.group)


def _waiting_text(before: Sequence[ClaimRecord], store: Store, group: str) -> str:
    if not before:
        return f"next in concurrency group `{group}`"
    more = f" and {len(before) - 1} more" if len(before) > 1 else ""
    return f"waiting for {_described(store, before[0].run_id)}{more} in concurrency group `{group}`"


def _described(store: Store, run_id: str) -> str:
    """Describe a live run by its owner: `run X (pid 12, since 10:30:00)`."""
    with contextlib.suppress(RerailError):
        owner = store.ownership(run_id).owner
        if owner is not None:
            return f"run {run_id} (pid {owner.pid}, since {_clock(owner)})"
    return f"run {run_id}"


def _clock(owner: Owner) -> str:
    since = owner.since.astimezone()
    return since.strftime("%H:%M:%S" if since.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S")


class RunClaims:
    """Paths and the concurrency group that a run claims while this process executes it; free of cost without any."""

    def __init__(
        self, store: Store, pipeline: Pipeline, header: RunHeader, work_dir: str, *, allow_concurrent: bool
    ) -> None:
        run_dir = store.directory(header.run_id)
        scope = Scope(params=header.params, env=os.environ, steps={}, run={"id": header.run_id, "dir": run_dir})
        self._store = store
        self._group = concurrency_group(pipeline, header)
        self._on_conflict = pipeline.concurrency.on_conflict if pipeline.concurrency is not None else "refuse"

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
        if self._mine or self._group:
            self._claims = Claims(store)
        self._work_dir = work_dir

    def take(
        self,
        command: str,
        own: Callable[[], RunWriter],
        tell: Callable[[str], None],
        discard: Callable[[], None] = lambda: None,
    ) -> tuple[RunWriter, bool]:
        """Own the run with its paths and its group; return it, and whether it had to wait.

        `own` is called once the run is admitted or has a turn, `discard` if it is not admitted after a wait. Raise
        RunBusy if a live run may write one of the paths or holds the group, WaitStopped after a signal in the wait.
        """
        if self._claims is None:
            return own(), False
        with self._claims.alone():
            before = [] if self._allow_concurrent else self._before()
            if not before:
                return self._admit(command, own), False
            if self._on_conflict == "refuse":
                self._refuse(before[0], command)
        with processes.caught_signals() as received:
            log = own()
            try:
                with self._claims.alone():
                    self._claims.queue(self._run_id, self._group)
                self._wait(command, log, tell, received)
            except BaseException:
                self._claims.release()
                log.close()
                discard()
                raise
        return log, True

    def _admit(self, command: str, own: Callable[[], RunWriter]) -> RunWriter:
        """Own the run with its paths and its group. Under `alone`."""
        assert self._claims is not None
        if self._group:
            self._claims.end_leftovers(self._run_id, self._group)
        if not self._allow_concurrent:
            self._claims.check_conflicts(self._run_id, self._mine, command=command)
        log = own()
        try:
            self._claims.put(self._run_id, self._mine, self._group)
        except BaseException:
            log.close()
            raise
        return log

    def _before(self) -> list[ClaimRecord]:
        assert self._claims is not None
        return self._claims.before(self._run_id, self._group) if self._group else []

    def _refuse(self, other: ClaimRecord, command: str) -> None:
        does = "waits for" if other.waiting else "holds"
        raise RunBusy(
            f"{_described(self._store, other.run_id)} {does} the concurrency group `{self._group}`,"
            " which takes one run at a time",
            hint=f"rerail watch {other.run_id}, or {command} --allow-concurrent",
        )

    def _wait(self, command: str, log: RunWriter, tell: Callable[[str], None], received: list[signal.Signals]) -> None:
        """Wait for the turn of this run in its group, and claim; raise WaitStopped once a signal is received."""
        assert self._claims is not None
        told, stopped = "", set[str]()
        while not received:
            before = self._before()
            if not before:
                with self._claims.alone():
                    if not self._before():
                        self._admit(command, lambda: log)
                        return
                continue
            for other in before:
                self._reject_ancestor(other.run_id, command)
                if self._on_conflict == "stop_other" and other.run_id not in stopped:
                    stopped.add(other.run_id)
                    self._stop(other.run_id, tell)
            text = _waiting_text(before, self._store, self._group)
            if text != told:
                told = text
                tell(text)
            time.sleep(WAIT_SECONDS)
        hint = command if self._run_id in command else "run it again"
        number = received[0]
        received.clear()
        raise WaitStopped(self._run_id, number, told or "waiting", hint=hint)

    def _reject_ancestor(self, other: str, command: str) -> None:
        """Raise RunBusy if this process is one of a step of the other run, which would wait for this one."""
        if any(mark.startswith(f"{other}@") for mark in os.environ.get(processes.MARKS, "").split("|")):
            raise RunBusy(
                f"run {other} holds the concurrency group `{self._group}`, and one of its steps started this run:"
                " each would wait for the other",
                hint=f"another group, or {command} --allow-concurrent",
            )

    def _stop(self, other: str, tell: Callable[[str], None]) -> None:
        who = _described(self._store, other)
        try:
            signal_owner(self._store, other)
        except OutOfReach as error:
            raise RunBusy(f"{error.message}; it is in concurrency group `{self._group}`", hint=error.hint) from None
        tell(f"stopping {who}: concurrency group `{self._group}`")

    def contested(self, paths: Sequence[str], since: datetime) -> str:
        """Return why the files at these paths may be another run's, or '' if no other can have written them since."""
        if self._claims is None:
            return ""
        root = os.path.realpath(self._work_dir)
        return self._claims.contested([os.path.normpath(os.path.join(root, path)) for path in paths], since)

    def release(self) -> None:
        if self._claims is not None:
            self._claims.release()
