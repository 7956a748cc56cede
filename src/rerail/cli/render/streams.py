"""Printing that never fails or blocks a run: lines for people on stderr, JSON lines for programs on stdout."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator

import msgspec

from rerail.text import size_text, without_escapes

STDOUT, STDERR = 1, 2
FLUSH_SECONDS = 2.0

_encode = msgspec.json.Encoder().encode


class _Outlet:
    """Writer thread: a reader that does not read our output cannot block the run."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[tuple[int, bytes] | threading.Event | None] = queue.SimpleQueue()
        self._accepted = 0  # bytes, counted by the thread that executes the run
        self._written = 0  # by the writer
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def put(self, fd: int, data: bytes) -> None:
        self._accepted += len(data)
        self._lines.put((fd, data))

    @property
    def backlog(self) -> int:
        """Bytes that wait to be written, about."""
        return max(self._accepted - self._written, 0)

    def drain(self) -> None:
        """Wait until the output so far is written, for as long as it seems to be read."""
        done = threading.Event()
        self._lines.put(done)
        done.wait(FLUSH_SECONDS)

    def close(self) -> None:
        """Write the remaining output, for as long as it seems to be read."""
        self._lines.put(None)
        self._thread.join(FLUSH_SECONDS)

    def _serve(self) -> None:
        while (line := self._lines.get()) is not None:
            if isinstance(line, threading.Event):
                line.set()
            else:
                _write(*line)
                self._written += len(line[1])


_outlets: list[_Outlet] = []


@contextlib.contextmanager
def outlet() -> Iterator[_Outlet]:
    """Print from a thread of its own, so that printing cannot block, while the context is active."""
    _outlets.append(_Outlet())
    try:
        yield _outlets[-1]
    finally:
        _outlets.pop().close()


def _emit(fd: int, data: bytes) -> None:
    if _outlets:
        _outlets[-1].put(fd, data)
    else:
        _flush_stdout()
        _write(fd, data)


def backlog() -> int:
    """Return the number of bytes that wait to be written."""
    return _outlets[-1].backlog if _outlets else 0


def _flush_stdout() -> None:
    """Write earlier output first, also where stdout and stderr are one pipe."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()


def _write(fd: int, data: bytes) -> None:
    """Write to a stream that may be gone, full or closed: none of that is an error of the run."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(fd, data) :]


def put_line(data: bytes) -> None:
    """Write a line of JSON to stdout."""
    _emit(STDOUT, data + b"\n")


def say(text: str) -> None:
    """Write a line to stderr; where that is a terminal, a long one goes on in further lines at a word."""
    say_raw(wrapped(printable(text), STDERR))


def wrapped(text: str, fd: int, indent: int = 2) -> str:
    """Return text whose long lines are broken at words, for a terminal; commands to copy stay in one piece."""
    if not os.isatty(fd):
        return text
    try:
        width = os.get_terminal_size(fd).columns or 80
    except OSError:
        return text
    return "\n".join(_wrapped(line, width, indent) for line in text.split("\n"))


def _wrapped(line: str, width: int, indent: int) -> str:
    if len(line) <= width or line.lstrip().startswith("next:") or width <= 2 * indent:
        return line
    import textwrap  # only for a line that does not fit

    return textwrap.fill(
        line,
        width,
        subsequent_indent=" " * indent,
        drop_whitespace=True,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )


def say_raw(text: str, end: str = "\n") -> None:
    """Write a line to stderr that has no text from outside, or only text that is printable already."""
    say_command(inert(text), end)


def say_command(text: str, end: str = "\n") -> None:
    """Write a line to stderr as it is: a CI service takes it for a command if it looks like one."""
    _emit(STDERR, (text + end).encode(errors="backslashreplace"))


_COMMANDS = re.compile(r"^(\s*):(?=:)|#(?=#\[)", re.MULTILINE)


def inert(text: str) -> str:
    """Return text in which GitHub Actions finds no command: `::` at the beginning of a line, or `##[` anywhere."""
    if ("::" not in text and "##[" not in text) or os.environ.get("GITHUB_ACTIONS") != "true":
        return text
    return _COMMANDS.sub(lambda found: f"{found[0]}\N{ZERO WIDTH SPACE}", text)


def print_json(value: object) -> None:
    """Write a value to stdout as one line of JSON."""
    sys.stdout.write(_encode(value).decode() + "\n")


def printable(text: str) -> str:
    """Return text without control characters, so that the output of a step cannot control the terminal."""
    text = without_escapes(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


class ReadingProgress:
    """Progress messages about bytes read, now and then, if reading takes long."""

    def __init__(self, slow: float = 1.0, again: float = 2.0) -> None:
        self._bytes = 0
        self._next = time.monotonic() + slow
        self._again = again

    def __call__(self, count: int) -> None:
        self._bytes += count
        if time.monotonic() > self._next:  # several threads may say it at once; that is harmless
            self._next = time.monotonic() + self._again
            say(f"rerail: verifying artifacts, {size_text(self._bytes)} read so far")
