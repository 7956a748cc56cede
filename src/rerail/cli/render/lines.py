"""Reporter for output that cannot be redrawn: one line per event, and the output of steps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from rerail.cli.render.events import sentence
from rerail.cli.render.output import Colours, HeldOutput
from rerail.cli.render.streams import printable, say, say_raw
from rerail.cli.render.terminal import STYLES, Terminal
from rerail.cli.render.units import clock, counted, seconds
from rerail.core import events as ev
from rerail.core.model import Map, Pipeline, every_step
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId, steps_around

PROGRESS_SECONDS = 10.0  # before the first line about the progress of a step or a map, and between two


class LineReporter:
    """Reporter of one time-stamped line per event on stderr; of a step whose output it holds, with that output."""

    def __init__(
        self,
        run_id: str,
        look: Terminal,
        *,
        quiet: bool,
        verbose: bool,
        held: HeldOutput | None = None,
        only_failed: bool = False,
        folded: Callable[[str, list[str]], None] | None = None,
        warns: bool = True,
        tells_retries: bool = False,
    ) -> None:
        self._run_id = run_id
        self._held = held
        self._only_failed = only_failed
        self._folded = folded
        self._warns = warns
        self._tells_retries = tells_retries  # of items: where their output is printed, which then appears again
        self._colours = Colours(look)
        self._look = look
        self._quiet = quiet
        self._verbose = verbose
        self._maps: set[str] = set()
        self._reported: dict[tuple[str, str | None, int], float] = {}  # attempt → its seconds at its last line
        self._told: dict[str, tuple[datetime, int]] = {}  # last progress line of a map: its time, its closed items

    def attach(self, pipeline: Pipeline) -> None:
        """Note which steps are maps: of their items only failures are printed, and progress now and then."""
        self._maps = {step.id for _, step in every_step(pipeline) if isinstance(step.action, Map)}

    def _is_of_an_item(self, event: ev.Event) -> bool:
        if not isinstance(event, ev.UnitEvent) or event.item is None or self._verbose:
            return False
        return any(step in self._maps for step in (event.step, *steps_around(event.step)))

    def _progress(self, event: ev.UnitEvent, state: RunState) -> str:
        """Return a line about the progress of a map, if one is due; else ''."""
        items = state.unit(UnitId(event.step)).items
        if items is None or items.is_loop:
            return ""
        closed = items.closed
        since, before = self._told.setdefault(event.step, (event.at, closed))
        passed = (event.at - since).total_seconds()
        if passed < PROGRESS_SECONDS or closed in (items.total, before):
            return ""
        rate = (closed - before) / passed
        self._told[event.step] = (event.at, closed)
        failed = f", {items.failed} failed" if items.failed else ""
        left = seconds((items.total - closed) / rate)
        return f"progress     {event.step}: {closed} of {items.total} items{failed}, {rate:.1f}/s, ETA {left}"

    def show(self, seq: int, event: ev.Event, state: RunState) -> None:  # noqa: ARG002 - the port's signature
        if isinstance(event, ev.RunStarted) and not self._quiet:
            say(f"rerail: run {self._run_id}: {counted(event.steps, 'step')}, up to {event.options.parallel} in parallel")
        line = sentence(event) if self._verbose or not _is_detail(event) else ""
        if self._is_of_an_item(event):
            assert isinstance(event, ev.UnitEvent)
            # Of an item of several steps only its failure, which has the cause; not each step.
            is_told = False
            if isinstance(event, ev.StepFailed):
                is_told = self._tells_retries if event.retry_at is not None else event.step in self._maps
            line = line if is_told else self._progress(event, state) if _closes(event) else ""
        elif isinstance(event, ev.StepProgressed) and not self._is_due(event):
            line = ""
        output = self._output_of(event)
        if output or (line and not self._quiet):
            self._print(
                f"{clock(event.at)}  {self._look.paint(printable(line or sentence(event)), _style(event))}", event, output
            )

    def _output_of(self, event: ev.Event) -> list[str]:
        """Return the output to print with the end of an attempt."""
        if self._held is None or not isinstance(event, ev.StepCompleted | ev.StepFailed | ev.StepInterrupted):
            return []
        for_good = isinstance(event, ev.StepFailed) and event.retry_at is None
        shown = for_good or not self._only_failed
        return self._held.release(event.unit, event.attempt, failed=for_good, shown=shown)

    def _print(self, line: str, event: ev.Event, output: list[str]) -> None:
        if output and self._folded is not None:
            self._folded(line, output)
            return
        title = self._colours.title(str(event.unit)) if output and isinstance(event, ev.UnitEvent) else ""
        say_raw("\n".join([line, *(title + text for text in output)]))

    def _is_due(self, event: ev.StepProgressed) -> bool:
        """Return whether progress is worth a line: not of a step that has just started, nor twice in a row."""
        attempt = (event.step, event.item, event.attempt)
        if not self._verbose and event.elapsed - self._reported.get(attempt, 0.0) < PROGRESS_SECONDS:
            return False
        self._reported[attempt] = event.elapsed
        return True

    def warn(self, message: str) -> None:
        if self._warns and not self._quiet:
            say(f"rerail: {message}")


def _closes(event: ev.Event) -> bool:
    return isinstance(event, ev.StepCompleted | ev.StepFailed | ev.StepSkipped)


def _style(event: ev.Event) -> str:
    match event:
        case ev.StepCompleted():
            return STYLES["completed"]
        case ev.StepFailed(allowed=allowed, retry_at=retry_at):
            return STYLES["allowed"] if allowed or retry_at else STYLES["failed"]
        case ev.StepInterrupted() | ev.StepInvalidated():
            return STYLES["interrupted"]
        case ev.StepSkipped():
            return STYLES["skipped"]
        case _:
            return ""


def _is_detail(event: ev.Event) -> bool:
    about_run = ev.RunStarted | ev.RunResumed | ev.RunFinished | ev.RunInterrupted | ev.RunPaused
    return isinstance(event, about_run | ev.ArtifactsRestored | ev.StepInherited)  # printed with the plan already
