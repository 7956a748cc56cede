"""A real pseudo-terminal with a real emulator behind it: what a person would see."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

from tests.conftest import RERAIL, Project

PATIENCE = 120.0


class Screen:
    """A command in a terminal of a given size."""

    def __init__(self, root: Path, env: dict[str, str], *arguments: str, columns: int = 100, lines: int = 30) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._fd, far = pty.openpty()
        self._resize(far, columns, lines)
        plain = {
            name: value
            for name, value in env.items()
            if name not in ("CI", "GITHUB_ACTIONS", "COLUMNS", "LINES", "NO_COLOR")
        }
        plain = {"TERM": "xterm-256color", "LANG": "C.UTF-8", **plain}
        self.process = subprocess.Popen(
            [*RERAIL, *arguments],
            cwd=root,
            env=plain,
            stdin=far,
            stdout=far,
            stderr=far,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - so that Ctrl-C is a signal
        )
        os.close(far)

    @staticmethod
    def _resize(fd: int, columns: int, lines: int) -> None:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        self._resize(self._fd, columns, lines)
        self.screen.resize(lines, columns)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def _read(self, patience: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], patience)
        if not ready:
            return True
        with contextlib.suppress(OSError):
            data = os.read(self._fd, 65536)
            self.raw += data
            self._stream.feed(data)
            return bool(data)
        return False

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def until(self, condition: Callable[[str], object], what: str) -> str:
        """Read on until the screen looks like that."""
        deadline = time.monotonic() + PATIENCE
        while not condition(self.text):
            assert time.monotonic() < deadline, f"{what} never came:\n{self.text}"
            if not self._read(0.05) and not condition(self.text):
                raise AssertionError(f"it ended before {what}:\n{self.text}")
        return self.text

    def end(self) -> str:
        """Read to the end; the screen then."""
        while self._read(PATIENCE):
            pass
        self.process.wait()
        os.close(self._fd)
        return self.text


def screen(project: Project, *arguments: str, columns: int = 100, lines: int = 30) -> Screen:
    return Screen(project.root, project.env, *arguments, columns=columns, lines=lines)
