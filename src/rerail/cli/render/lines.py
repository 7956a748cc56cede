"""Reporters for output that cannot be redrawn: one line per event, and groups where CI folds them."""

from __future__ import annotations

import secrets
from datetime import datetime

from rerail.cli.render.events import sentence
from rerail.cli.render.streams import printable, say, say_raw
from rerail.cli.render.terminal import STYLES, Terminal
from rerail.cli.render.units import clock, counted, seconds
from rerail.core import events as ev
from rerail.core.model import Map, Pipeline, every_step
from rerail.core.state import RunState
from rerail.engine.spec import attempt_name
from rerail.ports import RunLogs

PROGRESS_SECONDS = 10.0  # before the first line about the progress of a step or a map, and between two
GROUP_BYTES = 64 * 1024  # of a step's output, in a group


class LineReporter:
    """Reporter of one time-stamped line per event on stderr."""

    def __init__(self, run_id: str, look: Terminal, *, quiet: bool, verbose: bool) -> None:
        self._run_id = run_id
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
        step = event.step
        while step not in self._maps and "/" in step:
            step = step.rpartition("/")[0]
        return step in self._maps

    def _progress(self, event: ev.UnitEvent, state: RunState) -> str:
        """Return a line about the progress of a map, if one is due; else ''."""
        items = state.unit((event.step, None)).items
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
            for_good = isinstance(event, ev.StepFailed) and event.retry_at is None and event.step in self._maps
            line = line if for_good else self._progress(event, state) if _closes(event) else ""
        elif isinstance(event, ev.StepProgressed) and not self._is_due(event):
            line = ""
        if line and not self._quiet:
            say_raw(f"{clock(event.at)}  {self._look.paint(printable(line), _style(event))}")

    def _is_due(self, event: ev.StepProgressed) -> bool:
        """Return whether progress is worth a line: not of a step that has just started, nor twice in a row."""
        attempt = (event.step, event.item, event.attempt)
        if not self._verbose and event.elapsed - self._reported.get(attempt, 0.0) < PROGRESS_SECONDS:
            return False
        self._reported[attempt] = event.elapsed
        return True

    def warn(self, message: str) -> None:
        if not self._quiet:
            say(f"rerail: {message}")


def _closes(event: ev.Event) -> bool:
    return isinstance(event, ev.StepCompleted | ev.StepFailed | ev.StepSkipped)


class GithubReporter:
    """Reporter of a step's output, folded into a group once it has ended, and of failures as annotations."""

    def __init__(self, logs: RunLogs) -> None:
        self._logs = logs
        self._places: dict[str, tuple[str, int]] = {}

    def attach(self, pipeline: Pipeline, path: str) -> None:
        """Note where steps are declared, so that a failure can point there."""
        self._places = {step.id: (path, step.line) for step in pipeline.steps}

    def show(self, seq: int, event: ev.Event, state: RunState) -> None:  # noqa: ARG002 - the port's signature
        if not isinstance(event, ev.StepCompleted | ev.StepFailed) or event.item is not None:
            return
        output = self._output(attempt_name(event.unit, event.attempt))
        if output:
            say_raw(f"::group::{_escaped(printable(sentence(event)))}")
            token = secrets.token_hex(8)  # the output of a step must not be taken for our commands
            say_raw(f"::stop-commands::{token}\n{output}\n::{token}::")
            say_raw("::endgroup::")
        if isinstance(event, ev.StepFailed) and event.retry_at is None and not event.allowed:
            path, line = self._places.get(event.step, ("", 0))
            where = f",file={_property(path)},line={line}" if path else ""
            say_raw(f"::error title={_property(f'step {event.step} failed')}{where}::{_escaped(event.error.message)}")

    def warn(self, message: str) -> None:
        say_raw(f"::warning::{_escaped(message)}")

    def _output(self, name: str) -> str:
        texts = []
        for ending in (".out", ".err"):
            texts.append(self._logs.read(name + ending, 0, GROUP_BYTES).decode(errors="replace").rstrip("\n"))
        return printable("\n".join(text for text in texts if text))


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


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
