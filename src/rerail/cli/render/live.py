"""The live view: the dashboard, redrawn at most ten times a second, by a thread that cannot block the run.

It keeps a state of its own, folded from the events it gets, so it never reads a state that the engine is changing.
"""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from rerail.cli.render.dashboard import Dashboard, DashboardFrame, Line
from rerail.cli.render.events import sentence
from rerail.cli.render.probe import AttemptProbe
from rerail.cli.render.streams import STDERR, say, wrapped
from rerail.cli.render.terminal import Terminal
from rerail.cli.render.units import clock
from rerail.core.events import Event
from rerail.core.model import Pipeline
from rerail.core.state import RunState, apply
from rerail.text import one_line

FRAME_SECONDS = 0.1
FLUSH_SECONDS = 2.0
AWAY_SECONDS = 1.5


def copied(state: RunState) -> RunState:
    """Return a copy of a state that can be changed on its own."""
    units = {unit: copy.copy(known) for unit, known in state.units.items()}
    for known in units.values():
        if known.items is not None:
            known.items = known.items.copy()
    inner = {item: set(steps) for item, steps in state.inner.items()}
    return msgspec.structs.replace(state, units=units, inner=inner)


class _Aside:
    """Period during which nothing is drawn."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.over = threading.Event()


class LiveView:
    """Reporter that draws the dashboard. Before `attach` and after `close` it shows nothing."""

    def __init__(self, run_id: str, glimpses: AttemptProbe, look: Terminal, frame_seconds: float = FRAME_SECONDS) -> None:
        self._run_id = run_id
        self._glimpses = glimpses
        self._look = look
        self._frame_seconds = frame_seconds
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._state = RunState()
        self._board: Dashboard | None = None
        self._screen: _Screen | None = None

    def attach(self, pipeline: Pipeline, state: RunState) -> None:
        """Begin to draw a run from this state on."""
        self._state = copied(state)
        self._board = Dashboard(pipeline, self._look)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def show(self, seq: int, event: Event, state: RunState) -> None:  # noqa: ARG002 - the port's signature
        self._inbox.put((seq, event))

    def replace(self, state: RunState) -> None:
        """Show this state instead, for a run that another process executes."""
        self._inbox.put(state)

    def warn(self, message: str) -> None:
        self._inbox.put(message)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Leave the screen to other output; then continue below it."""
        aside = _Aside()
        self._inbox.put(aside)
        aside.begun.wait(FLUSH_SECONDS)
        try:
            yield
        finally:
            aside.over.set()

    def close(self) -> None:
        """Draw the last frame and leave it on the screen; a terminal that does not take it is not waited for."""
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join(FLUSH_SECONDS)

    def _serve(self) -> None:
        try:
            self._screen = _Screen(self._look)
            try:
                self._draw_until_closed()
            finally:
                self._screen.close()
        except OSError:
            return  # the terminal is gone: the run is not
        except Exception as error:  # noqa: BLE001 - whatever fails in drawing, the run must not become invisible
            say(f"rerail: the live view broke ({type(error).__name__}: {error}); continuing with plain lines")
            self._tell_the_rest()

    def _tell_the_rest(self) -> None:
        while (item := self._inbox.get()) is not None:
            if isinstance(item, tuple):
                say(f"{clock(item[1].at)}  {sentence(item[1])}")
            elif isinstance(item, str):
                say(f"rerail: {item}")

    def _draw_until_closed(self) -> None:
        due, tick = 0.0, 0
        while True:
            going = self._take(max(due - time.monotonic(), 0.0))
            if time.monotonic() >= due or not going:
                self._draw(tick, live=going)
                due, tick = time.monotonic() + self._frame_seconds, tick + 1
            if not going:
                return

    def _take(self, patience: float) -> bool:
        """Apply all events and messages so far, waiting up to `patience` seconds; return False once closed."""
        try:
            item = self._inbox.get(timeout=patience) if patience else self._inbox.get_nowait()
            while item is not None:
                if isinstance(item, str):
                    assert self._screen is not None
                    self._screen.say(f"rerail: {item}")
                elif isinstance(item, RunState):
                    self._state = item
                elif isinstance(item, _Aside):
                    self._stand_aside(item)
                else:
                    apply(self._state, *item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            return True
        return False

    def _stand_aside(self, aside: _Aside) -> None:
        assert self._screen is not None
        self._draw(0, live=True, closing=True)
        self._screen.close()
        aside.begun.set()
        aside.over.wait()
        self._screen.reopen()

    def _draw(self, tick: int, *, live: bool, closing: bool = False) -> None:
        assert self._board is not None
        assert self._screen is not None
        frame = DashboardFrame(
            run_id=self._run_id,
            state=self._state,
            now=datetime.now(UTC),
            glimpses=self._glimpses.of(self._state) if live else {},
            tick=tick,
            live=live,
        )
        board = self._board
        has_begun = self._state.started_at is not None  # else it waits for its turn, or is refused: there is no run
        shape = _Shape(whole=not live, closing=closing or not live)
        self._screen.draw(lambda width, height: board.lines(frame, width, height) if has_begun else [], shape)


class _Shape(NamedTuple):
    """Shape of a frame: whether it may be longer than the screen, and whether other output follows below it."""

    whole: bool
    closing: bool


def _in_background() -> bool:
    try:
        return os.tcgetpgrp(STDERR) != os.getpgrp()
    except OSError:
        return False


class _Screen:
    """Terminal by way of rich, which is imported only here."""

    def __init__(self, look: Terminal) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(
            stderr=True, no_color=not look.colour, highlight=False, markup=False, emoji=False, force_terminal=True
        )
        self._last = time.monotonic()
        self._live = self._begin(Live)

    def _begin(self, live: Any) -> Any:
        """Begin a live area below the present output. The cursor stays: a killed process could not bring it back."""
        with contextlib.suppress(IndexError):  # there is none before the first
            self._console.clear_live()
        begun = live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        begun.start()
        self._console.show_cursor(True)  # noqa: FBT003 - rich's signature
        return begun

    def draw(self, lines: Callable[[int, int], list[Line]], shape: _Shape) -> None:
        """Draw a frame. The cursor is left on a row of its own, in case this process is killed or suspended."""
        from rich.console import Group
        from rich.text import Text

        if _in_background():
            self._last = float("-inf")
            return
        now = time.monotonic()
        if now - self._last > AWAY_SECONDS:  # we were suspended, or in the background: other output may be here
            self._live = self._begin(type(self._live))
        self._last = now
        width, height = self._size()
        # The last frame may be longer than the screen: it can be scrolled back to.
        made = lines(width, 10_000 if shape.whole else max(height - 2, 2))
        texts = [Text.assemble(*line, no_wrap=True, overflow="crop") for line in made]
        if not shape.closing:  # it adds a line break by itself at its end
            texts.append(Text(""))
        if shape.whole:
            self._live.vertical_overflow = "visible"
        self._live.update(Group(*texts), refresh=True)

    def _size(self) -> tuple[int, int]:
        """Return the terminal's own size, for every frame: LINES and COLUMNS of a shell do not follow a resize."""
        try:
            size = os.get_terminal_size(STDERR)
        except OSError:
            return self._console.size
        # A terminal that does not know its size says 0.
        self._console.size = rich_size = (max(size.columns or 80, 2), max(size.lines or 24, 2))
        return rich_size

    def say(self, message: str) -> None:
        for line in message.split("\n"):
            self._console.print(wrapped(one_line(line, 2000), STDERR), soft_wrap=True)

    def reopen(self) -> None:
        """Draw again, below other output."""
        self._last = time.monotonic()  # else the next frame would begin once more, a row lower
        self._live = self._begin(type(self._live))

    def close(self) -> None:
        self._live.stop()
