"""`rerail logs`: what steps printed, in the order of time, also while they print it."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator

import click

from rerail.cli.options import complete_step, find_run, open_store, run_argument, store_option
from rerail.cli.output import printable, say
from rerail.cli.terminal import Look, out_look
from rerail.errors import UsageError
from rerail.executors.output import LOG_BYTES, ORDER, RESTS
from rerail.stores.directory import DirectoryStore

POLL_SECONDS = 0.1
PIECE = 1 << 20

_NAME = re.compile(r"(?P<step>.+)\.(?P<attempt>\d+)\.(?P<stream>out|err)(?P<rest>\.rest2?)?")
_COLOURS = ("cyan", "green", "yellow", "")


@click.command(epilog="Example: rerail logs last build -f")
@run_argument()
@click.argument("step", required=False, default=None, shell_complete=complete_step)
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only this attempt of STEP.")
@click.option("-f", "--follow", is_flag=True, help="Go on as long as the run does.")
@store_option()
def logs(run_name: str, step: str | None, attempt: int | None, follow: bool, store_url: str | None) -> int:
    """Print what the steps of a run printed, or one of them, in the order of time."""
    store = open_store(store_url)
    run_id = find_run(store, run_name)
    if attempt is not None and step is None:
        raise UsageError("--attempt needs a STEP", hint=f"rerail logs {run_id} STEP --attempt {attempt}")
    known = {unit[0] for unit in store.read(run_id).state.units}
    if step is not None and step not in known:
        names = ", ".join(sorted(known)[:12]) or "none yet"
        raise UsageError(f"nothing happened to a step {step!r} in run {run_id}; to these it did: {names}",
                         hint=f"rerail show {run_id}")  # fmt: skip
    reader = LogReader(os.path.join(store.path(run_id), "logs"), step or "", attempt)
    printer = _Printer(out_look(), prefix=step is None)
    for name, data in _pieces(store, run_id, reader, follow=follow):
        printer.put(name, data)
    printer.end()
    if not printer.printed:
        say(f"rerail: nothing was printed\n  next: rerail show {run_id}")
    return 0


def _pieces(store: DirectoryStore, run_id: str, reader: LogReader, *, follow: bool) -> Iterator[tuple[str, bytes]]:
    yield from reader.ordered()
    while follow:
        alive = store.ownership(run_id).alive
        yield from reader.new()
        if not alive:
            break
        sys.stdout.flush()
        time.sleep(POLL_SECONDS)
    yield from reader.new()
    yield from reader.rests()


class LogReader:
    """The log files of a run, read piece by piece."""

    def __init__(self, directory: str, step: str, attempt: int | None) -> None:
        self._directory = directory
        self._step = step
        self._attempt = attempt
        self._read: dict[str, int] = {}  # bytes of each file that were taken

    def _wanted(self, name: str) -> bool:
        match = _NAME.fullmatch(name)
        if match is None or (self._step and match["step"] != self._step):
            return False
        return self._attempt is None or int(match["attempt"]) == self._attempt

    def ordered(self) -> Iterator[tuple[str, bytes]]:
        """What was noted down in the order of time."""
        with contextlib.suppress(OSError), open(os.path.join(self._directory, ORDER), "rb") as order:
            for line in order:
                words = line.split(b" ", 2)
                if len(words) == 3 and words[1].isdigit() and line.endswith(b"\n"):
                    name = words[2][:-1].decode(errors="replace")
                    if self._wanted(name):
                        yield from self._take(name, int(words[1]))

    def new(self) -> Iterator[tuple[str, bytes]]:
        """What else there is by now: not noted down yet, or never."""
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self._directory), key=self._age):
                if self._wanted(name) and not name.endswith(RESTS):
                    yield from self._take(name, LOG_BYTES)

    def rests(self) -> Iterator[tuple[str, bytes]]:
        """The ends of logs that were too long to be kept whole."""
        with contextlib.suppress(OSError):
            rests = [name for name in os.listdir(self._directory) if self._wanted(name) and name.endswith(RESTS)]
            for name in sorted(rests, key=self._continues_at):
                yield from self._take(name, LOG_BYTES * 2)

    def _continues_at(self, name: str) -> int:
        with contextlib.suppress(OSError), open(os.path.join(self._directory, name), "rb") as file:
            found = re.search(rb"after byte (\d+)", file.readline(200))
            return int(found[1]) if found else 0
        return 0

    def _age(self, name: str) -> float:
        with contextlib.suppress(OSError):
            return os.stat(os.path.join(self._directory, name)).st_mtime
        return 0.0

    def _take(self, name: str, most: int) -> Iterator[tuple[str, bytes]]:
        with contextlib.suppress(OSError), open(os.path.join(self._directory, name), "rb") as file:
            file.seek(self._read.get(name, 0))
            while most > 0 and (data := file.read(min(most, PIECE))):
                most -= len(data)
                self._read[name] = self._read.get(name, 0) + len(data)
                yield name, data


class _Printer:
    """Whole lines to stdout, each with its step if there are several; raw where no terminal could be harmed."""

    def __init__(self, look: Look, *, prefix: bool) -> None:
        self._look = look
        self._raw = not os.isatty(1)
        self._prefix = prefix
        self._pending: dict[str, bytes] = {}
        self._colours: dict[str, str] = {}
        self.printed = False

    def put(self, name: str, data: bytes) -> None:
        self.printed = True
        for other in [other for other in self._pending if name != other and name.startswith(other)]:
            self._line(other, self._pending.pop(other))  # a long log goes on in another file
        *lines, rest = (self._pending.pop(name, b"") + data).split(b"\n")
        for line in lines:
            self._line(name, line)
        if rest:
            self._pending[name] = rest

    def end(self) -> None:
        for name, rest in self._pending.items():
            self._line(name, rest)
        self._pending.clear()
        sys.stdout.flush()

    def _line(self, name: str, line: bytes) -> None:
        if not self._raw:
            line = printable(line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]).encode()
        if self._prefix:
            match = _NAME.fullmatch(name)
            step = match["step"] if match else name
            colour = self._colours.setdefault(step, _COLOURS[len(self._colours) % len(_COLOURS)])
            line = self._look.paint(f"{step} | ", colour).encode() + line
        sys.stdout.buffer.write(line + b"\n")
