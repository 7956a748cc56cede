"""GitHub Actions: groups that fold, annotations, the summary of the job and the outputs of its step."""

from __future__ import annotations

import os
import secrets
from typing import Literal

from rerail.cli.render.failure import details_command, last_lines, more_items
from rerail.cli.render.streams import inert, say, say_command
from rerail.cli.render.units import counted
from rerail.core import events as ev
from rerail.core.failures import FailureLog
from rerail.core.model import Pipeline, Step, Subpipeline
from rerail.core.state import RunState

MAX_ANNOTATIONS = 10  # that GitHub shows of one step
MAX_WARNINGS = 4  # of these, so that failures have room


def fold(title: str, lines: list[str]) -> None:
    """Print lines in a group that is folded; nothing in them is taken for a command."""
    token = secrets.token_hex(16)
    body = "\n".join(lines).replace("##[", "#\N{ZERO WIDTH SPACE}#[")  # the page of the log would draw it
    say_command(
        f"::group::{_escaped(inert(title.partition(chr(10))[0]))}\n::stop-commands::{token}\n{body}\n::{token}::\n::endgroup::"
    )


class GithubReporter:
    """Reporter of failures and warnings as annotations, at their line of the pipeline file."""

    def __init__(self, run_id: str, where: str) -> None:
        self._run_id = run_id
        self._where = where
        self._places: dict[str, tuple[str, int]] = {}
        self._failures = FailureLog()
        self._annotations = 0
        self._left_out = 0

    def attach(self, pipeline: Pipeline, path: str) -> None:
        """Note where steps are declared."""
        self._places = {}
        self._note(pipeline.steps, path)
        self._note(pipeline.finally_, path)

    def _note(self, steps: tuple[Step, ...], path: str) -> None:
        for step in steps:
            self._places[step.id] = (path, step.line)
            self._note(step.on_failure, path)
            inner = (
                os.path.join(os.path.dirname(path), step.action.path) if isinstance(step.action, Subpipeline) else path
            )
            self._note(step.body, inner)

    def show(self, seq: int, event: ev.Event, state: RunState) -> None:  # noqa: ARG002 - the port's signature
        self._failures.note(event)
        if not isinstance(event, ev.StepFailed) or event.retry_at is not None or event.allowed:
            return
        if any(outer in state.units for outer in event.unit.ancestors()):
            return  # the step around it will say so, if that fails
        cause = self._failures.cause(state, event)
        path, line = self._places.get(cause.unit.step, ("", 0))
        place = f",file={_property(_in_workspace(path))},line={line}" if path and line else ""
        texts = [event.error.message]
        if cause.unit != event.unit:
            texts.append(f"in {cause.unit}: {cause.error.message}")
        texts += [f"  {text}" for text in last_lines(cause)]
        texts += filter(None, (more_items(self._run_id, cause, self._where),))
        texts.append(f"next: {details_command(self._run_id, cause, self._where)}")
        self._annotate("error", f" title={_property(f'step {event.step} failed')}{place}", "\n".join(texts))

    def warn(self, message: str) -> None:
        if self._annotations < MAX_WARNINGS:
            self._annotate("warning", "", message)
        else:
            say(f"rerail: {message}")

    def _annotate(self, level: Literal["error", "warning"], properties: str, message: str) -> None:
        if self._annotations >= MAX_ANNOTATIONS:
            self._left_out += 1
            return
        self._annotations += 1
        say_command(f"::{level}{properties}::{_escaped(inert(message))}")

    def close(self) -> None:
        """Say how many failures are not annotated."""
        if self._left_out:
            say(
                f"rerail: {counted(self._left_out, 'more failure')} not annotated (GitHub shows {MAX_ANNOTATIONS})"
                f"\n  next: rerail show {self._run_id}{self._where}"
            )


def _in_workspace(path: str) -> str:
    """Return a path relative to the checkout, from where GitHub finds the file."""
    root = os.environ.get("GITHUB_WORKSPACE", "")
    real = os.path.realpath(path)
    return os.path.relpath(real, os.path.realpath(root)) if root else path


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
