"""Output of steps among our own lines: as it comes, or all of a step together once it has ended.

Both are bounded, and say how much they left out and which command shows it: the logs have it all. They are fed by the
thread that executes the run, with output that is masked already, and never wait for a reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from rerail.cli.render.failure import logs_command
from rerail.cli.render.streams import printable
from rerail.cli.render.terminal import Terminal
from rerail.cli.render.units import counted
from rerail.core.unit_id import UnitId

OutputMode = Literal["live", "grouped", "failed", "none"]

LINE_BYTES = 8 * 1024  # that are shown of a line
STEP_RATE, STEP_BURST = 128 * 1024, 512 * 1024  # bytes a second of one step, and at once
RUN_RATE, RUN_BURST = 512 * 1024, 2 * 1024 * 1024  # of all steps together
MAX_BACKLOG = 1024 * 1024  # bytes that may wait to be written: more are not read fast enough
HEAD_BYTES, TAIL_BYTES = 48 * 1024, 16 * 1024  # of a step, in a group
MAX_GROUPED = 8 * 1024 * 1024  # of all groups of one invocation; those of failed steps may take as much again

COLOURS = ("cyan", "green", "yellow", "")  # of steps, in turn


class Colours:
    """Colours of steps, in the order in which they first print."""

    def __init__(self, look: Terminal) -> None:
        self._look = look
        self._colours: dict[str, str] = {}

    def title(self, title: str) -> str:
        """Return the beginning of every line of a step."""
        colour = self._colours.setdefault(title, COLOURS[len(self._colours) % len(COLOURS)])
        return self._look.paint(f"{printable(title)} | ", colour)


class LineAssembler:
    """Assembler of the whole lines of one stream, wherever it is cut; long lines are shortened."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are complete now, each with its newline."""
        lines, newline, rest = (self._rest + data).rpartition(b"\n")
        if b"\r" in rest:  # a line that is written again and again: its last state counts
            rest = rest.rstrip(b"\r").rpartition(b"\r")[2] + (b"\r" if rest.endswith(b"\r") else b"")
        self._rest = rest[: LINE_BYTES + 1]
        return lines + newline

    def end(self) -> bytes:
        """Return the last line, which has no newline of its own."""
        rest, self._rest = self._rest, b""
        return rest + b"\n" if rest else b""


def text_of(line: bytes) -> str:
    """Return a line of output as text that cannot control the terminal."""
    line = line.rstrip(b"\r").rpartition(b"\r")[2]
    more = "…" if len(line) > LINE_BYTES else ""
    return printable(line[:LINE_BYTES].decode(errors="replace")).replace("\n", " ") + more


class Allowance:
    """Number of bytes that may be shown: so many at once, and so many a second."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._since = burst, now

    def room(self, now: float) -> int:
        self._left = min(self._left + (now - self._since) * self._rate, self._burst)
        self._since = now
        return int(self._left)

    def spend(self, count: int) -> None:
        self._left -= count


class _Speaker(msgspec.Struct, kw_only=True):
    """Attempt that is running and has printed."""

    allowance: Allowance
    streams: dict[str, LineAssembler]
    left_out: int = 0  # lines since the last one shown


class LiveOutput:
    """Listener that prints `step | line` while steps run."""

    def __init__(
        self,
        run_id: str,
        where: str,
        look: Terminal,
        say: Callable[[str], None],
        backlog: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_id = run_id
        self._where = where
        self._look = look
        self._colours = Colours(look)
        self._say = say
        self._backlog = backlog
        self._clock = clock
        self._all = Allowance(RUN_RATE, RUN_BURST, clock())
        self._speakers: dict[tuple[UnitId, int], _Speaker] = {}

    def take(self, unit: UnitId, attempt: int, stream: str, data: bytes) -> None:
        speaker = self._speakers.get((unit, attempt))
        if speaker is None:
            if not data:
                return
            allowance = Allowance(STEP_RATE, STEP_BURST, self._clock())
            speaker = self._speakers[unit, attempt] = _Speaker(allowance=allowance, streams={})
        if data:
            assembler = speaker.streams.setdefault(stream, LineAssembler())
            self._show(unit, speaker, assembler.feed(data))
            return
        ended = speaker.streams.pop(stream, None)
        if ended is not None:
            self._show(unit, speaker, ended.end())
        if not speaker.streams:
            del self._speakers[unit, attempt]
            self._say_left_out(unit, speaker)

    def _show(self, unit: UnitId, speaker: _Speaker, lines: bytes) -> None:
        """Print as many of these lines as may be printed now; count the others."""
        if not lines:
            return
        now = self._clock()
        room = min(speaker.allowance.room(now), self._all.room(now), MAX_BACKLOG - self._backlog())
        if speaker.left_out and room < STEP_RATE:  # else a line about lines left out would follow every few lines
            room = 0
        shown = lines if len(lines) <= room else lines[: lines.rfind(b"\n", 0, max(room, 0)) + 1]
        if shown:
            self._say_left_out(unit, speaker)
            title = self._colours.title(str(unit))
            self._say("\n".join(title + text_of(line) for line in shown[:-1].split(b"\n")))
            speaker.allowance.spend(len(shown))
            self._all.spend(len(shown))
        speaker.left_out += lines.count(b"\n", len(shown))

    def _say_left_out(self, unit: UnitId, speaker: _Speaker) -> None:
        if speaker.left_out:
            title = self._colours.title(str(unit))
            self._say(title + self._look.paint(left_out_text(self._run_id, unit, speaker.left_out, self._where), "dim"))
            speaker.left_out = 0


def output_mode(wanted: OutputMode | None, look: Terminal, *, quiet: bool, verbose: bool, as_json: bool) -> OutputMode:
    """Return how the output of steps is shown if that is not said: by the stream and the other flags."""
    if wanted is not None:
        return wanted
    if quiet or as_json:
        return "none"
    if look.ci == "github":
        return "grouped"
    return "live" if verbose or look.ci else "none"


def left_out_text(run_id: str, unit: UnitId, lines: int, where: str) -> str:
    """Say how many lines are not shown, and which command shows them."""
    return f"… {counted(lines, 'line')} left out: {printable(logs_command(run_id, unit, where))}"


class _Held(msgspec.Struct, kw_only=True):
    """Output of a running attempt: its beginning and its end."""

    streams: dict[str, LineAssembler]
    head: bytearray
    tail: bytearray
    full: bool = False  # the head has no room for another line
    lines: int = 0

    def add(self, lines: bytes) -> None:
        self.lines += lines.count(b"\n")
        if not self.full:
            if len(self.head) + len(lines) <= HEAD_BYTES:
                self.head += lines
                return
            self.full = True
            cut = lines.rfind(b"\n", 0, max(HEAD_BYTES - len(self.head), 0)) + 1
            self.head += lines[:cut]
            lines = lines[cut:]
        self.tail += lines
        if len(self.tail) > TAIL_BYTES:
            del self.tail[: self.tail.find(b"\n", len(self.tail) - TAIL_BYTES - 1) + 1]


class HeldOutput:
    """Listener that keeps the output of each running attempt, up to a limit, until its end is recorded."""

    def __init__(self, run_id: str, where: str) -> None:
        self._run_id = run_id
        self._where = where
        self._held: dict[tuple[UnitId, int], _Held] = {}
        self._shown = 0  # bytes, of all groups
        self.left_out = 0  # attempts that are not shown

    def take(self, unit: UnitId, attempt: int, stream: str, data: bytes) -> None:
        held = self._held.get((unit, attempt))
        if held is None:
            if not data:
                return
            held = self._held[unit, attempt] = _Held(streams={}, head=bytearray(), tail=bytearray())
        assembler = held.streams.setdefault(stream, LineAssembler())
        held.add(assembler.feed(data) if data else assembler.end())

    def release(self, unit: UnitId, attempt: int, *, failed: bool = False, shown: bool = True) -> list[str]:
        """Return the lines of an attempt that has ended, and forget it; none if they are not to be shown."""
        held = self._held.pop((unit, attempt), None)
        if held is None or not held.lines or not shown:
            return []
        if self._shown >= MAX_GROUPED * (2 if failed else 1):
            self.left_out += 1
            return []
        self._shown += len(held.head) + len(held.tail)
        return list(self._lines(unit, held))

    def _lines(self, unit: UnitId, held: _Held) -> Iterator[str]:
        yield from map(text_of, bytes(held.head).split(b"\n")[:-1])
        left_out = held.lines - held.head.count(b"\n") - held.tail.count(b"\n")
        if left_out:
            yield left_out_text(self._run_id, unit, left_out, self._where)
        yield from map(text_of, bytes(held.tail).split(b"\n")[:-1])
