"""Asking a person at the terminal what an `approve` step wants to know."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import termios
from collections.abc import Callable
from contextlib import AbstractContextManager

from rerail.cli.render.output import STDERR, say_raw
from rerail.cli.render.terminal import Terminal
from rerail.engine.spec import Answer, Ask
from rerail.text import one_line

STDIN = 0
LOOK_SECONDS = 0.1  # between two looks whether a signal came
MOST_ANSWER = 1000


def somebody_is_there() -> bool:
    """Whether a person can be asked: one who sees what is written and can answer."""
    try:
        return os.isatty(STDIN) and os.isatty(STDERR) and os.tcgetpgrp(STDIN) == os.getpgrp()
    except OSError:
        return False


def who() -> str:
    """The name of whoever is at the terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"


def asker(aside: Callable[[], AbstractContextManager[None]], look: Terminal) -> Ask | None:
    """Who asks, if there is anybody to ask; `aside` clears the screen for the question."""
    if not somebody_is_there():
        return None

    def ask(step: str, question: str, interrupted: Callable[[], bool]) -> Answer:
        with aside():
            return _answer(step, question, interrupted, look)

    return ask


def _answer(step: str, question: str, interrupted: Callable[[], bool], look: Terminal) -> Answer:
    with contextlib.suppress(termios.error):
        termios.tcflush(STDIN, termios.TCIFLUSH)  # what was typed before is no answer
    say_raw(f"\n{look.paint('?', 'yellow')} {look.paint(one_line(question, MOST_ANSWER), 'bold')}")
    while True:
        say_raw(f"  {one_line(step, 200)}: y to approve, n [reason] to reject, Enter to decide later")
        say_raw("  > ", end="")
        line = _line(interrupted)
        if line is None or not line.strip():
            say_raw("")
            return Answer(approved=None)
        word, _, reason = line.strip().partition(" ")
        if word.lower() in ("y", "yes", "n", "no"):
            return Answer(approved=word.lower()[0] == "y", by=who(), reason=reason.strip())


def _line(interrupted: Callable[[], bool]) -> str | None:
    """A line from the terminal; None at its end, or if there is something more urgent."""
    while not interrupted():
        if select.select([STDIN], [], [], LOOK_SECONDS)[0]:
            data = os.read(STDIN, MOST_ANSWER)
            return data.decode(errors="replace") if data else None
    return None
