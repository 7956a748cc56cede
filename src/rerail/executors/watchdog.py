"""The watchdogs: two small processes that end everything of an invocation once rerail is gone, however it dies.

They are forks of rerail with names and command lines of their own, because `killall -9 rerail` or
`pkill -9 -f 'rerail run'` means rerail, not them. Each does the whole work alone. rerail sees one die and starts another.
Their knowledge is in memory that they share with rerail: it is right at any instant at which a process dies, it costs
a step nothing, and a watchdog that is started later finds it there.

They also count stop signals, because they can when rerail cannot: the handler in C writes the number of each to a pipe,
whatever the interpreter is doing. At the third they tell rerail to leave, and end it if it does not.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Iterable

from rerail import processes
from rerail.executors import channels

NAMES = processes.GUARDS  # neither the name of rerail nor that of its interpreter is in them
LEAVING_SECONDS = 5.0  # that rerail has to leave by itself, with an exit code that says why
_AGAIN = (0.005, 0.02, 0.1, 0.3)  # seconds between the searches for processes that were being started when rerail died
_PACE = 1.0  # seconds between two starts of a watchdog, should each die soon

_OVER, _PIPE, _HIGHEST, _NOTES, _COUNTS, _PATH, _SESSIONS = 0, 1, 2, 3, 4, 8, 8 + 4096 // 8  # in words of 8 bytes
_WORDS = 1 << 17


class _Table:
    """Memory that rerail shares with its watchdogs. Each word has one writer, and each change is one word."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _WORDS * 8)  # untouched pages cost nothing
        self._words = memoryview(self._memory).cast("q")
        self._places: dict[int, int] = {}
        self._free: list[int] = []

    def put_session(self, session: int) -> None:
        place = self._free.pop() if self._free else _SESSIONS + len(self._places)
        if place >= _WORDS:
            raise OSError("too many processes at once")
        self._places[session] = place
        self._words[place] = session
        self._words[_HIGHEST] = max(self._words[_HIGHEST], place + 1)

    def remove_session(self, session: int) -> None:
        place = self._places.pop(session, 0)
        if place:
            self._words[place] = 0
            self._free.append(place)

    def put_pipe(self, number: int) -> None:
        self._words[_PIPE] = number

    def put_notes(self, path: str) -> None:
        raw = os.fsencode(path)
        if len(raw) < 4096:
            self._memory[_PATH * 8 : _PATH * 8 + len(raw)] = raw
            self._words[_NOTES] = len(raw)

    def end(self) -> None:
        self._words[_OVER] = 1

    def count(self, watchdog: int, signals: int) -> int:
        """Add the signals that a watchdog has read; return the count of all watchdogs."""
        self._words[_COUNTS + watchdog] += signals
        return sum(self._words[_COUNTS : _COUNTS + len(NAMES)])

    @property
    def is_over(self) -> bool:
        return bool(self._words[_OVER])

    @property
    def notes(self) -> str:
        return os.fsdecode(self._memory[_PATH * 8 : _PATH * 8 + self._words[_NOTES]])

    @property
    def known(self) -> processes.KillScope:
        sessions = frozenset(self._words[_SESSIONS : max(self._words[_HIGHEST], _SESSIONS)]) - {0}
        pipe = self._words[_PIPE]
        return processes.KillScope(sessions, frozenset([pipe] if pipe else ()))

    def close(self) -> None:
        self._words.release()
        self._memory.close()


class Watchdogs:
    """Watchdogs of one invocation, as rerail controls them. Not thread-safe."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        # One origin for all watchdogs: one that starts late, or again, may find a clock that was set since.
        self._since, self._began = time.time(), time.monotonic()
        self._table = _Table()
        self._pids = [0] * len(NAMES)
        self._ends = [-1] * len(NAMES)  # descriptors that are readable when a watchdog has died, where there are such
        self._started = [float("-inf")] * len(NAMES)
        self._wanted = False
        self._alive = os.pipe()  # closed when rerail ends
        self._heard = os.pipe()  # numbers of signals; both ends stay open, so that it takes them while no watchdog runs
        self._leave = os.pipe()
        for fd in (*self._heard, *self._leave):
            os.set_blocking(fd, False)

    @property
    def pids(self) -> set[int]:
        """Watchdogs that are known to run."""
        return {pid for pid in self._pids if pid}

    @property
    def ends(self) -> Iterable[int]:
        """Descriptors that become readable when a watchdog dies: call `replace` then."""
        return [fd for fd in self._ends if fd >= 0]

    @property
    def due(self) -> list[float]:
        """Times to call `replace`, by the monotonic clock, although none has died since."""
        if not self._wanted:
            return []
        return [began + _PACE for pid, began in zip(self._pids, self._started, strict=True) if not pid]

    @property
    def signals(self) -> int:
        """Descriptor that takes the numbers of signals."""
        return self._heard[1]

    @property
    def leave(self) -> int:
        """Descriptor that yields the number of a signal, once there were so many that rerail must leave."""
        return self._leave[0]

    def start(self) -> bool:
        """Start the watchdogs that do not run; return whether `ends` has changed. Raise OSError."""
        self._wanted = True
        changed = self._bury()
        for number, pid in enumerate(self._pids):
            if not pid:
                self._start(number)
                changed = True
        return changed

    def replace(self) -> bool:
        """Replace dead watchdogs; return whether `ends` has changed. One that cannot be started is due later."""
        changed = self._bury()
        now = time.monotonic()
        for number, pid in enumerate(self._pids):
            if not pid and self._wanted and now >= self._started[number] + _PACE:
                with contextlib.suppress(OSError):
                    self._start(number)
                    changed = True
        return changed

    def begins(self, output: int) -> None:
        """Note the pipe of a process that is about to start, in case rerail dies before `began` is called."""
        self._table.put_pipe(os.fstat(output).st_ino)

    def began(self, session: int) -> None:
        """Note the session of the started process: it must not outlive rerail."""
        self._table.put_session(session)
        self._table.put_pipe(0)

    def ended(self, session: int) -> None:
        """Forget a session whose leader was waited for: its number may soon be another's."""
        self._table.remove_session(session)

    def note_at(self, directory: str) -> None:
        """Set the directory in which the death of rerail is recorded."""
        self._table.put_notes(directory)

    def close(self) -> None:
        """Stop the watchdogs: nothing is left to watch."""
        if self._alive[1] < 0:
            return
        self._table.end()
        with contextlib.suppress(OSError):
            os.write(self._alive[1], b"x")
        for pid in self.pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for fd in (*self.ends, *self._alive, *self._heard, *self._leave):
            os.close(fd)
        self._alive = (-1, -1)
        self._table.close()

    def _bury(self) -> bool:
        """Forget the watchdogs that have died; return whether there were any."""
        found = False
        for number, pid in enumerate(self._pids):
            with contextlib.suppress(ChildProcessError):
                if not pid or os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            found = True
            self._pids[number] = 0
            if self._ends[number] >= 0:
                os.close(self._ends[number])
                self._ends[number] = -1
        return found

    def _start(self, number: int) -> None:
        self._started[number] = time.monotonic()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._watch(number, parent)
        self._pids[number] = pid
        with contextlib.suppress(AttributeError, OSError):  # no pidfd here: `start` checks whether it is alive
            self._ends[number] = os.pidfd_open(pid)

    # In the watchdog

    def _watch(self, number: int, parent: int) -> None:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for one in (*processes.STOPPING, signal.SIGQUIT, signal.SIGTSTP):
                signal.signal(one, signal.SIG_IGN)
            # All other descriptors are closed: a reader of rerail's output must not wait for a watchdog.
            _close_all_but(self._alive[0], self._heard[0], self._leave[1])
            _rename(processes.guard_line(NAMES[number], parent), NAMES[number])
            self._wait(number, parent)
            if not self._table.is_over:
                if os.path.isdir(self._table.notes):
                    lasted = time.monotonic() - self._began  # by the monotonic clock: the wall clock may have been set
                    channels.note_death(self._table.notes, self._since + lasted, lasted)
                processes.kill_tagged(self._mark, self._table.known, pauses=_AGAIN)
        finally:
            os._exit(0)

    def _wait(self, number: int, parent: int) -> None:
        """Wait until rerail is gone, or the table says that it is over; count the stop signals meanwhile."""
        poll = select.poll()
        try:
            end = os.pidfd_open(parent)
        except (AttributeError, OSError):  # no pidfd here, or rerail is gone already: the pipe says so
            end = -1
        else:
            poll.register(end, select.POLLIN)
        poll.register(self._alive[0], select.POLLIN)
        poll.register(self._heard[0], select.POLLIN)
        until: float | None = None
        while os.getppid() == parent and not self._table.is_over:
            patience = None if until is None else max(until - time.monotonic(), 0.0) * 1000
            ready = [fd for fd, _ in poll.poll(patience)]
            if self._heard[0] in ready and self._is_third(number) and until is None:
                until = time.monotonic() + LEAVING_SECONDS
            elif end in ready:
                return
            elif self._alive[0] in ready and not self._table.is_over and os.getppid() == parent:
                if end < 0:
                    return
                poll.unregister(self._alive[0])  # user code closed a descriptor that it does not know
            elif until is not None and time.monotonic() >= until and os.getppid() == parent:
                os.kill(parent, signal.SIGKILL)
                until = None  # nothing more can be done

    def _is_third(self, number: int) -> bool:
        """Count the stop signals that came; once there were so many that rerail must leave, tell it and return True."""
        try:
            stops = [one for one in os.read(self._heard[0], 64) if one in processes.STOPPING]
        except BlockingIOError:  # the other watchdog was quicker
            return False
        if not stops or self._table.count(number, len(stops)) < processes.LEAVING:
            return False
        with contextlib.suppress(OSError):
            os.write(self._leave[1], bytes(stops[-1:]))
        return True


def _close_all_but(*kept: int) -> None:
    lowest = 0
    for fd in sorted(kept):
        os.closerange(lowest, fd)
        lowest = fd + 1
    os.closerange(lowest, 65536)


def _rename(line: str, name: str) -> None:
    """Change the command line and the name of this process, where that is possible."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/comm", "wb") as file:
            file.write(name.encode()[:15])
        with open("/proc/self/stat", "rb") as file:
            text = file.read()
        first, last = (int(field) for field in text[text.rfind(b")") + 2 :].split()[45:47])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(first)
            memory.write(line.encode()[: last - first - 1].ljust(last - first, b"\0"))
