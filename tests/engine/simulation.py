"""Simulation of a run in process: memory store, scripted executor, manual clock.

Nothing runs and nobody waits: an attempt is a line of a script, and time is a number that the executor moves on. The
oracle is `launched`, which the executor writes down itself, and what the store holds.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from datetime import UTC, tzinfo
from typing import Any

import msgspec

from rerail.core import events as ev
from rerail.core.audit import Audit
from rerail.core.expressions.language import evaluate
from rerail.core.inflight import AttemptTrace
from rerail.core.masking import Mask
from rerail.core.model import Pipeline, RunHeader, RunOptions
from rerail.core.plan import PlanOptions
from rerail.core.planner import plan
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId
from rerail.core.values import Usage
from rerail.engine.recorder import Recorder
from rerail.engine.runner import Runner
from rerail.engine.signals import Signals
from rerail.engine.spec import Answer, RunResult, RunSpec, Toolbox
from rerail.loaders.yaml import load_pipeline
from rerail.ports import Attempt, Capabilities, Executor, FileCheck, Outcome, ProcessWork, Work
from rerail.stores.memory import MemoryStore
from rerail.testing.clock import ManualClock

RUN = "r"
MAX_WAITS = 10_000  # of the executor: a loop that waits more often makes no progress


class Killed(BaseException):
    """The process is killed: nothing of it is recorded after this."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Behaviour of one attempt."""

    seconds: float = 1.0
    exit_code: int = 0
    message: str = ""
    stderr: str = ""
    outputs: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    killed: bool = False  # the process of the run is killed while the attempt runs


OK = Script()
FAILS = Script(exit_code=1, message="exit code 1")


class SimulatedExecutor:
    """Executor whose attempts follow scripts on a manual clock."""

    capabilities = Capabilities()
    signal_pipes = (-1, -1)

    def __init__(self, clock: ManualClock, scripts: dict[str, list[Script]]) -> None:
        self.launched: list[str] = []
        self.started_at: list[tuple[str, float]] = []
        self.most_in_flight = 0
        self.on_wait: Callable[[], None] = lambda: None
        self._clock = clock
        self._scripts = scripts
        self._in_flight: dict[Any, tuple[float, float, Script]] = {}  # unit → began, due, script
        self._stopped: list[Any] = []
        self._waits = 0

    def guard(self) -> None:
        pass

    def start(self, attempt: Attempt, work: Work) -> None:
        unit = str(attempt.unit)
        self.launched.append(unit)
        now = self._clock.monotonic()
        self.started_at.append((unit, now))
        scripts = self._scripts.get(unit) or self._scripts.get(attempt.unit.step) or [OK]
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        self._in_flight[attempt.unit] = (now, now + script.seconds, script)
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))

    def wait(self, patience: Callable[[], float]) -> list[Outcome]:
        self._waits += 1
        assert self._waits < MAX_WAITS, f"the loop waits without an end; launched: {self.launched}"
        self.on_wait()
        stopped, self._stopped = self._stopped, []
        if stopped:
            return [self._end(unit, "stopped") for unit in stopped]
        now = self._clock.monotonic()
        next_due = min((due for _, due, _ in self._in_flight.values()), default=float("inf"))
        self._clock.advance(max(min(next_due - now, patience()), 0.0))
        now = self._clock.monotonic()
        ended = [unit for unit, (_, due, _) in self._in_flight.items() if due <= now + 1e-9]
        return [self._end(unit) for unit in ended]

    def _end(self, unit: Any, status: Any = None) -> Outcome:
        began, _, script = self._in_flight.pop(unit)
        if script.killed and status is None:
            raise Killed
        return Outcome(
            unit=unit,
            status=status or ("failed" if script.exit_code else "ok"),
            duration=self._clock.monotonic() - began,
            type="ExitCode" if script.exit_code else "",
            message=script.message,
            exit_code=script.exit_code,
            stderr_tail=script.stderr,
            outputs={} if script.exit_code else script.outputs,
            metrics=script.metrics,
        )

    def stop(self, grace: float, spare: Container[str] = ()) -> None:
        self._stopped += [unit for unit in self._in_flight if unit.step not in spare and unit not in self._stopped]

    def wake(self) -> None:
        pass

    def suspend(self, number: int) -> None:
        pass

    def shift_deadlines(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


class NoFiles:
    """Artifact worker of pipelines without files."""

    def examine(self, *_arguments: Any) -> None:
        raise AssertionError("the pipeline has no files")

    seal = reverify = quarantine = examine

    def finished(self) -> list[FileCheck]:
        return []

    def slow(self, now: float) -> list[str]:
        return []

    def give_up(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Kind:
    def work(self, attempt: Attempt) -> Work:
        return ProcessWork(argv=())


class _Kinds(dict[Any, Any]):
    def __missing__(self, key: Any) -> _Kind:
        return _Kind()


class Warnings:
    """Reporter that keeps warnings and acknowledged events."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.shown: list[ev.Event] = []

    def show(self, seq: int, event: ev.Event, state: RunState) -> None:
        self.shown.append(event)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


class Simulation:
    """A run of a pipeline, over several invocations."""

    def __init__(self, text: str, **scripts: Sequence[Script] | Script) -> None:
        self.pipeline: Pipeline = load_pipeline(text.encode(), "pipeline.yaml")
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.launched: list[str] = []  # by all invocations
        self.warnings: list[str] = []
        self.answers: list[Answer] = []  # of the person at the terminal; without any there is none
        self.messages: list[ev.ApprovalGiven] = []  # of people elsewhere
        self.scripts = {
            step.replace("__", "/"): [script] if isinstance(script, Script) else list(script)
            for step, script in scripts.items()
        }
        self.executor = SimulatedExecutor(self.clock, self.scripts)
        self.on_wait: Callable[[SimulatedExecutor, Signals], None] = lambda _executor, _signals: None

    def run(self, options: RunOptions | None = None, **spec: Any) -> RunResult:
        """Execute one invocation: the first, or the next. Raises Killed if a script says so."""
        now, options = self.clock.now(), options or RunOptions()
        new = RUN not in self.store.runs()
        header = RunHeader(
            format=1,
            run_id=RUN,
            pipeline="p",
            pipeline_path="pipeline.yaml",
            work_dir="",
            created_at=now.isoformat(),
            rerail="test",
            options=options,
        )
        writer = self.store.create(header, b"") if new else self.store.own(RUN)
        state = writer.recording.state
        owner = self.store.ownership(RUN).owner
        assert owner is not None
        opening: Any = (ev.RunStarted if new else ev.RunResumed)(
            at=now,
            owner=owner,
            pipeline_sha256="",
            options=options,
            steps=len(self.pipeline.steps),
            hooks=self.pipeline.hooks,
        )
        decisions = plan(self.pipeline, state, Audit(), PlanOptions())
        reporter = Warnings()
        self.executor = executor = SimulatedExecutor(self.clock, self.scripts)
        signals = Signals(executor)
        executor.on_wait = lambda: self.on_wait(executor, signals)
        recorder = Recorder(writer, header, self.pipeline, [reporter], self.clock, Mask(()))
        job = RunSpec(
            header=header,
            pipeline=self.pipeline,
            plan=decisions,
            options=options,
            work_dir="",
            mask=Mask(()),
            environment={"RERAIL_RUN_DIR": ""},
            base_env={},
            channel=lambda _attempt: ("", {}),
            left_by=lambda _attempt: AttemptTrace(),
            seen=lambda _attempt: (Usage(), None),
            **spec,
        )
        try:
            return Runner(job, self._tools(executor, signals), recorder).run(opening)
        finally:
            self.launched += executor.launched
            self.warnings += reporter.warnings
            writer.close()

    def kill(self, **spec: Any) -> None:
        """Execute one invocation that is killed."""
        try:
            result = self.run(**spec)
        except Killed:
            return
        raise AssertionError(f"it was to be killed, and ended: {result}")

    def _tools(self, executor: Executor, signals: Signals) -> Toolbox:
        zone: tzinfo = UTC
        return Toolbox(
            executor=executor,
            worker=NoFiles(),
            kinds=_Kinds(),
            clock=self.clock,
            zone=zone,
            random=lambda: 0.0,
            signals=signals,
            head=lambda _directory: "",
            work_tree=lambda _directory: "",
            uncommitted=lambda _directory: [],
            find=lambda patterns, text: (frozenset(one for one in patterns if one in text), ()),
            source=lambda source, scope: source.value if source.kind == "list" else evaluate(source.value, scope),
            ask=self._answer if self.answers else None,
            take_messages=self._take_messages,
        )

    def _answer(self, _step: str, _question: str, _is_over: Callable[[], bool]) -> Answer:
        return self.answers.pop(0) if self.answers else Answer(approved=None)

    def _take_messages(self) -> list[ev.ApprovalGiven]:
        taken, self.messages = self.messages, []
        return taken

    @property
    def state(self) -> RunState:
        """The state that the records of the store add up to."""
        return self.store.read(RUN).state

    def unit(self, step: str, item: str | None = None) -> UnitState:
        return self.state.unit(UnitId(step, item))

    def events(self, kind: type[ev.Event] | None = None) -> list[Any]:
        return [event for _, event in self.store.history(RUN) if kind is None or isinstance(event, kind)]
