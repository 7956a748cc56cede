"""Reporters for where nothing can be drawn again: one line per event, and groups where CI folds them."""

from __future__ import annotations

import os
import secrets

from rerail.cli.durations import clock, counted
from rerail.cli.output import printable, say, say_raw
from rerail.cli.sentences import sentence
from rerail.cli.terminal import STYLES, Look
from rerail.core import events as ev
from rerail.core.model import Pipeline
from rerail.core.state import RunState

GROUP_BYTES = 64 * 1024  # of a step's output, in a group


class LineReporter:
    """One time-stamped line per event on stderr."""

    def __init__(self, run_id: str, look: Look, *, quiet: bool, verbose: bool) -> None:
        self._run_id = run_id
        self._look = look
        self._quiet = quiet
        self._verbose = verbose

    def show(self, seq: int, event: ev.Event, state: RunState) -> None:  # noqa: ARG002 - the port's signature
        if isinstance(event, ev.RunStarted) and not self._quiet:
            say(f"rerail: run {self._run_id}, {counted(event.steps, 'step')}, up to {event.options.parallel} at once")
        line = sentence(event) if self._verbose or not _is_detail(event) else ""
        if line and not self._quiet:
            say_raw(f"{clock(event.at)}  {self._look.paint(printable(line), _style(event))}")

    def warn(self, message: str) -> None:
        if not self._quiet:
            say(f"rerail: {message}")


class GithubReporter:
    """What a step printed, folded into a group once it has ended, and failures as annotations."""

    def __init__(self, run_dir: str) -> None:
        self._logs = os.path.join(run_dir, "logs")
        self._places: dict[str, tuple[str, int]] = {}

    def attach(self, pipeline: Pipeline, path: str) -> None:
        """Learn where steps are declared, so that a failure can point there."""
        self._places = {step.id: (path, step.line) for step in pipeline.steps}

    def show(self, seq: int, event: ev.Event, state: RunState) -> None:  # noqa: ARG002 - the port's signature
        if not isinstance(event, ev.StepCompleted | ev.StepFailed):
            return
        output = self._output(f"{event.step}.{event.attempt}")
        if output:
            say_raw(f"::group::{_escaped(printable(sentence(event)))}")
            token = secrets.token_hex(8)  # what a step prints must not be taken for commands of ours
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
            try:
                with open(os.path.join(self._logs, name + ending), "rb") as file:
                    texts.append(file.read(GROUP_BYTES).decode(errors="replace").rstrip("\n"))
            except OSError:
                continue
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
    return isinstance(event, about_run | ev.ArtifactsRestored | ev.StepAdopted)  # told with the plan already
