"""Recorder: mask, check, journal, sync, then report. No event is reported before it is durable.

A failure to record is a failure: it is raised once and remembered, and from then on nothing new may start. A
snapshot that cannot be written is a warning, because it is a cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from rerail.core.checkpoint import Reason, checkpoint_of, outline_of
from rerail.core.events import Event, StepCompleted, StepFailed, StepProgressed
from rerail.core.masking import Mask
from rerail.core.model import Pipeline, RunHeader
from rerail.core.state import RunState, apply
from rerail.errors import StateUnwritable
from rerail.ports import Clock, Reporter, RunWriter

SNAPSHOT_SHARE = 0.03  # of the time since the last one: the next is larger and must stay below 5 %
MANY_STEPS = 500  # from here on even a snapshot of nothing takes its time, so the first one has to be earned too


class Recorder:
    """The one path of events to state, journal and reporters, in that order, and without secrets."""

    def __init__(
        self,
        log: RunWriter,
        header: RunHeader,
        pipeline: Pipeline,
        reporters: Sequence[Reporter],
        clock: Clock,
        mask: Mask | None = None,
    ) -> None:
        self.state: RunState = log.recording.state
        self.write_error: StateUnwritable | None = None  # why the journal cannot be written any more
        self.writing_since: float | None = None  # when the write in progress began
        self.blocked_reason = ""  # why no new work should start although it can be
        self._mask = mask or None  # most runs have no secrets, and pay nothing for those that have
        self._log = log
        self._header = header
        self._policy = pipeline.checkpoint
        self._outline = outline_of(pipeline)
        self._reporters = reporters
        self._clock = clock
        self._staged: list[tuple[int, Event]] = []  # in the state, not in the journal
        self._sent: list[tuple[int, Event]] = []  # in the journal, not acknowledged
        many = len(pipeline.steps) >= MANY_STEPS
        self._snapshot_cost = 1e-5 * len(pipeline.steps) if many else 0.0
        self._snapshot_end = clock.monotonic() if many else float("-inf")
        self._snapshot_broken = False
        self._snapshot_seq = 0
        self._milestone_seq = 0  # of the last event that says more than how far a step is

    def stage(self, event: Event) -> None:
        """Apply an event to the state; raises IllegalEvent and changes nothing if the state does not allow it."""
        if self._mask is not None:
            event = self._masked(event, self._mask)
        seq = self.state.seq + 1
        apply(self.state, seq, event)
        self._staged.append((seq, event))
        if not isinstance(event, StepProgressed):
            self._milestone_seq = seq

    def _masked(self, event: Event, mask: Mask) -> Event:
        """Return the event without secrets; warn if that changed the outputs of a step."""
        masked = mask.struct(event)
        if isinstance(event, StepCompleted) and isinstance(masked, StepCompleted) and masked is not event:
            if masked.outputs != event.outputs:
                self.warn(f"{event.unit}: its outputs held a secret, which is masked")
            if len(masked.metrics) < len(event.metrics):
                self.warn(f"{event.unit}: a metric held a secret and is not counted")
        return masked

    def flush(self) -> None:
        """Make the staged events durable in one write and one sync, then report them.

        Raises StateUnwritable the first time the journal fails; after that events wait for `final_flush`.
        """
        if self.write_error is None and self._staged:
            try:
                self._append()
            except StateUnwritable as error:
                self.write_error = error
                raise

    def final_flush(self) -> bool:
        """Try once more to write all pending events; return whether that worked."""
        try:
            self._append()
        except StateUnwritable as error:
            self.write_error = self.write_error or error
            return False
        return True

    def unacknowledged_ends(self) -> tuple[str, ...]:
        """Return the steps whose end is not durable."""
        ends = (StepCompleted, StepFailed)
        return tuple(event.step for _, event in (*self._sent, *self._staged) if isinstance(event, ends))

    def _append(self) -> None:
        staged, self._staged = self._staged, []
        self._sent += staged
        self.writing_since = self._clock.monotonic()
        try:
            self._log.append([event for _, event in staged])
        finally:
            self.writing_since = None
        sent, self._sent = self._sent, []
        for reporter in self._reporters:
            for seq, event in sent:
                reporter.show(seq, event, self.state)

    @property
    def position(self) -> tuple[int, int]:
        """End of the durable part of the journal."""
        return self._log.position

    def find(self, tags: Collection[str], step: str, since: tuple[int, int] = (0, 0)) -> Iterator[Event]:
        """Return the durable records of these kinds about a step, from a position on."""
        return self._log.find(tags, step, since)

    def save_results(self, name: str, lines: Iterable[bytes]) -> str:
        return self._log.save_results(name, lines)

    @property
    def has_staged(self) -> bool:
        """Whether staged events can still become durable."""
        return bool(self._staged) and self.write_error is None

    @property
    def degraded(self) -> str:
        return self._log.degraded or self.blocked_reason

    def warn(self, message: str) -> None:
        """Send the reporters a message that is not an event."""
        if self._mask is not None:
            message = self._mask.text(message)
        for reporter in self._reporters:
            reporter.warn(message)

    def snapshot_if_due(self) -> None:
        """Take a snapshot if that costs less than 3 % of the time since the last one."""
        elapsed = self._clock.monotonic() - self._snapshot_end
        if self._snapshot_cost <= elapsed * SNAPSHOT_SHARE:
            self.snapshot()

    def snapshot_due(self) -> float | None:
        """Return when the next snapshot may be taken, or None if nothing happened since the last."""
        if self.state.seq == self._snapshot_seq or self._staged or self._sent:
            return None
        return self._snapshot_end + self._snapshot_cost / SNAPSHOT_SHARE if SNAPSHOT_SHARE else None

    def snapshot(self, reason: Reason | None = None) -> None:
        """Take a snapshot now, unless nothing happened since the last."""
        if self._staged or self._sent or (self.state.seq == self._snapshot_seq and reason is None):
            return
        began = self._clock.monotonic()
        checkpoint = checkpoint_of(self._header, self._outline, self.state, reason)
        self.writing_since = began
        try:
            milestone = self._milestone_seq > self._snapshot_seq
            self._log.save_snapshot(checkpoint, keep=self._policy.history, milestone=milestone)
        except OSError as error:
            if not self._snapshot_broken:
                self._snapshot_broken = True
                self.warn(f"checkpoint.json could not be written ({error.strerror}); the journal is complete without it")
        self.writing_since = None
        self._snapshot_end = self._clock.monotonic()
        self._snapshot_cost = self._snapshot_end - began
        self._snapshot_seq = self.state.seq
