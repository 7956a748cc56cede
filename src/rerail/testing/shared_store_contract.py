"""Contract of stores that several processes share: exclusion, and durability of acknowledged records after a kill.

class TestMyStore(SharedStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path): return lambda: MyStore(tmp_path)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from rerail.core.events import ApprovalGiven, Event, RunFinished, StepStarted
from rerail.core.unit_id import UnitId
from rerail.errors import RunBusy, RunExists, StateUnwritable
from rerail.ports import Store
from rerail.testing.store_contract import AT, StoreContract, header, resumed, started

_LONG = 20.0  # seconds after which something that should have happened has not
_CREATORS = 6

OpenStore = Callable[[], Store]


class ChildProcess:
    """Another process, which says a word now and then and waits for one."""

    def __init__(self, body: Callable[[Callable[[str], None], Callable[[], None]], None]) -> None:
        said, heard = os.pipe(), os.pipe()
        self._said = said[0]
        self._heard = heard[1]
        self.pid = os.fork()
        if self.pid:
            os.close(said[1])
            os.close(heard[0])
            return
        try:
            body(lambda word: _say(said[1], word), lambda: _wait(heard[0]))
        except BaseException as error:  # noqa: BLE001 - whatever happens there is for the test to judge
            _say(said[1], type(error).__name__)
        finally:
            os._exit(0)

    def says(self) -> str:
        """Its next word; '' if it has ended."""
        word = b""
        while not word.endswith(b"\n"):
            more = os.read(self._said, 1)
            if not more:
                break
            word += more
        return word.decode().strip()

    def speaks_within(self, seconds: float) -> bool:
        """Return whether it says something in that time."""
        return bool(select.select([self._said], [], [], seconds)[0])

    def goes_on(self) -> None:
        os.write(self._heard, b".")

    def die(self) -> None:
        """Kill the process by SIGKILL."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
            os.close(self._said)
            os.close(self._heard)


def _say(fd: int, word: str) -> None:
    os.write(fd, word.encode() + b"\n")


def _wait(fd: int) -> None:
    os.read(fd, 1)


@contextlib.contextmanager
def other(body: Callable[[Callable[[str], None], Callable[[], None]], None]) -> Iterator[ChildProcess]:
    process = ChildProcess(body)
    try:
        yield process
    finally:
        process.die()


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """Let no file of this process grow, as on a full disk; a store without files is not concerned."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


class SharedStoreContract(StoreContract):
    """`StoreContract`, and the promises between processes."""

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Store:
        return open_store()

    def test_what_was_appended_survives_the_death_of_its_writer(self, open_store: OpenStore) -> None:
        """Killed right after it was told that its records are kept."""

        def body(say: Callable[[str], None], wait: Callable[[], None]) -> None:
            log = open_store().create(header(), b"text")
            log.append([started()])
            for number in range(1, 6):
                log.append([StepStarted(at=AT, step=f"s{number}", attempt=1)])
            say("kept")
            wait()

        with other(body) as writer:
            assert writer.says() == "kept"
            writer.die()
            store = open_store()

            assert len(list(store.history("r1"))) == 6
            assert store.pipeline("r1", "") == b"text"
            assert store.read("r1").state.unit(UnitId("s5")).status == "running"
            log = store.own("r1")
            log.append([resumed()])
            log.close()
            assert [seq for seq, _ in store.history("r1")] == [*range(1, 8)]

    def test_a_run_has_one_owner_among_all_processes_until_that_one_dies(self, open_store: OpenStore) -> None:
        open_store().create(header(), b"").close()

        def body(say: Callable[[str], None], wait: Callable[[], None]) -> None:
            log = open_store().own("r1")
            log.append([started()])
            say("owned")
            wait()

        with other(body) as owner:
            assert owner.says() == "owned"
            store = open_store()
            for call in (store.own, store.delete):
                with pytest.raises(RunBusy):
                    call("r1")
            held = store.ownership("r1")
            assert held.alive
            assert held.owner is not None
            assert held.owner.pid == owner.pid
            owner.die()

            assert not store.ownership("r1").alive
            store.own("r1").close()
            assert not store.ownership("r1").alive

    def test_of_many_that_create_the_same_run_one_does(self, open_store: OpenStore) -> None:
        open_store().create(header("first"), b"").close()  # so that the place needs no preparation
        with contextlib.ExitStack() as all_of_them:

            def body(say: Callable[[str], None], wait: Callable[[], None]) -> None:
                store = open_store()
                say("ready")
                wait()
                try:
                    log = store.create(header(), b"")
                except RunExists:
                    say("exists")
                else:
                    log.append([started()])
                    say("created")
                wait()

            creators = [all_of_them.enter_context(other(body)) for _ in range(_CREATORS)]
            assert {one.says() for one in creators} == {"ready"}
            for one in creators:
                one.goes_on()
            words = sorted(one.says() for one in creators)
            for one in creators:
                one.die()

            assert words == ["created", *["exists"] * (_CREATORS - 1)]
            assert len(list(open_store().history("r1"))) == 1

    def test_what_cannot_be_written_is_an_error_and_is_written_when_it_can_be(self, open_store: OpenStore) -> None:
        """A full disk. A store that keeps nothing in files of this machine overrides this with a fault of its own."""
        store = open_store()
        log = store.create(header(), b"")
        log.append([started()])
        lost: list[Event] = [StepStarted(at=AT, step="a", attempt=1)]
        with no_room(), pytest.raises(StateUnwritable):
            log.append(lost)

        assert len(list(open_store().history("r1"))) == 1, "nothing is told that is not kept"
        log.append([])
        log.append([RunFinished(at=AT, status="failed")])
        log.close()
        assert [event for _, event in open_store().history("r1")][1:] == [*lost, RunFinished(at=AT, status="failed")]

    def test_a_forked_child_cannot_write_and_does_not_keep_the_run(self, open_store: OpenStore) -> None:
        store = open_store()
        log = store.create(header(), b"")
        log.append([started()])

        def body(say: Callable[[str], None], wait: Callable[[], None]) -> None:
            try:
                log.append([RunFinished(at=AT, status="failed")])
                say("wrote")
            except StateUnwritable:
                say("refused")
            wait()

        with other(body) as child:
            assert child.says() == "refused"
            log.close()
            until = time.monotonic() + _LONG
            while store.ownership("r1").alive and time.monotonic() < until:
                time.sleep(0.01)
            store.own("r1").close()
            assert len(list(store.history("r1"))) == 1

    def test_a_message_of_another_process_reaches_the_owner_after_its_sender_died(self, open_store: OpenStore) -> None:
        log = open_store().create(header(), b"")
        message = ApprovalGiven(at=AT, step="a", item=None, approved=True, by="me", reason="", seen=1)

        def body(say: Callable[[str], None], wait: Callable[[], None]) -> None:
            open_store().send("r1", message)
            say("sent")
            wait()

        with other(body) as sender:
            assert sender.says() == "sent"
            sender.die()
            assert log.inbox.take() == [message]
        log.close()

    def test_copies_are_pinned_for_all_processes_until_the_one_that_pins_dies(self, open_store: OpenStore) -> None:
        log = open_store().create(header(), b"")
        with log.staging() as staging:
            path = os.path.join(staging, "1")
            with open(path, "wb") as file:
                file.write(b"x")
            open_store().content.publish([(path, hashlib.sha256(b"x").hexdigest())])
        log.close()

        def body(say: Callable[[str], None], wait: Callable[[], None]) -> None:
            with open_store().content.pinned():
                say("pinned")
                wait()

        with other(body) as pinning:
            assert pinning.says() == "pinned"
            with pytest.raises(BlockingIOError):
                open_store().content.collect(set, dry_run=False)
            pinning.die()
            assert open_store().content.collect(set, dry_run=False) == (1, 1)

    def test_one_process_at_a_time_has_the_claims_until_it_dies(self, open_store: OpenStore) -> None:
        open_store().create(header(), b"").close()

        def holding(say: Callable[[str], None], wait: Callable[[], None]) -> None:
            with open_store().claims.locked():
                say("locked")
                wait()

        def waiting(say: Callable[[str], None], wait: Callable[[], None]) -> None:
            say("ready")
            with open_store().claims.locked():
                say("locked too")
                wait()

        with other(holding) as holder:
            assert holder.says() == "locked"
            with other(waiting) as second:
                assert second.says() == "ready"
                assert not second.speaks_within(0.2)
                holder.die()
                assert second.says() == "locked too"
