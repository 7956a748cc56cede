"""Prompt at the terminal for `approve` steps."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import termios
from collections.abc import Callable
from contextlib import AbstractContextManager

from rerail.cli.render.streams import STDERR, say_raw
from rerail.cli.render.terminal import Terminal
from rerail.engine.spec import Answer, Ask
from rerail.text import one_line

STDIN = 0
LOOK_SECONDS = 0.1  # between two checks for a signal
MAX_ANSWER = 1000


def is_interactive() -> bool:
    """Return whether a person can see the output and answer: the terminal is interactive."""
    try:
        return os.isatty(STDIN) and os.isatty(STDERR) and os.tcgetpgrp(STDIN) == os.getpgrp()
    except OSError:
        return False


def who() -> str:
    """Return the name of the user at the terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"


def asker(aside: Callable[[], AbstractContextManager[None]], look: Terminal) -> Ask | None:
    """Return the prompt for `approve` steps, or None without a terminal; `aside` clears the screen for it."""
    if not is_interactive():
        return None

    def ask(step: str, question: str, interrupted: Callable[[], bool]) -> Answer:
        with aside():
            return _answer(step, question, interrupted, look)

    return ask


def _answer(step: str, question: str, interrupted: Callable[[], bool], look: Terminal) -> Answer:
    with contextlib.suppress(termios.error):
        termios.tcflush(STDIN, termios.TCIFLUSH)  # earlier input is no answer
    say_raw(f"\n{look.paint('?', 'yellow')} {look.paint(one_line(question, MAX_ANSWER), 'bold')}")
    while True:
        say_raw(f"  Approve {one_line(step, 200)}? [y]es, [n]o REASON, Enter to decide later")
        say_raw("  > ", end="")
        line = read_line(interrupted)
        if line is None or not line.strip():
            say_raw("")
            return Answer(approved=None)
        word, _, reason = line.strip().partition(" ")
        if word.lower() in ("y", "yes", "n", "no"):
            return Answer(approved=word.lower()[0] == "y", by=who(), reason=reason.strip())


def read_line(interrupted: Callable[[], bool]) -> str | None:
    """Read a line from the terminal; None at its end, or once `interrupted` says so."""
    while not interrupted():
        if select.select([STDIN], [], [], LOOK_SECONDS)[0]:
            data = os.read(STDIN, MAX_ANSWER)
            return data.decode(errors="replace") if data else None
    return None
