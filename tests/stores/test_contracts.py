"""The contracts have teeth: a store or an executor that breaks a promise does not pass."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rerail import durable
from rerail.core.events import Event
from rerail.core.masking import Mask
from rerail.errors import StateUnwritable
from rerail.executors.local import LocalExecutor, spawn
from rerail.ports import Ownership
from rerail.stores.directory import DirectoryStore
from rerail.stores.writer import DirectoryRunWriter
from rerail.testing import ExecutorContract, SharedStoreContract

Patch = pytest.MonkeyPatch


def keeps_for_later(patch: Patch) -> None:
    """Says that it is kept and writes it the next time."""
    append, late = DirectoryRunWriter.append, dict[int, list[Event]]()

    def later(self: DirectoryRunWriter, events: Sequence[Event]) -> None:
        append(self, late.pop(id(self), []))
        late[id(self)] = list(events)

    patch.setattr(DirectoryRunWriter, "append", later)


def excludes_nobody(patch: Patch) -> None:
    patch.setattr("rerail.durable.fcntl.flock", lambda _fd, _how: None)


def swallows_errors(patch: Patch) -> None:
    append = DirectoryRunWriter.append

    def quietly(self: DirectoryRunWriter, events: Sequence[Event]) -> None:
        with contextlib.suppress(StateUnwritable):
            append(self, events)

    patch.setattr(DirectoryRunWriter, "append", quietly)


def drops_what_failed(patch: Patch) -> None:
    append = DirectoryRunWriter.append

    def dropping(self: DirectoryRunWriter, events: Sequence[Event]) -> None:
        try:
            append(self, events)
        except StateUnwritable:
            self._pending.clear()
            self._seq -= len(events)
            raise

    patch.setattr(DirectoryRunWriter, "append", dropping)


def is_always_alive(patch: Patch) -> None:
    ownership = DirectoryStore.ownership

    def alive(self: DirectoryStore, run_id: str) -> Ownership:
        return Ownership(owner=ownership(self, run_id).owner, alive=True)

    patch.setattr(DirectoryStore, "ownership", alive)


def believes_the_dead_alive(patch: Patch) -> None:
    patch.setattr("rerail.processes.is_alive", lambda _owner: True)


def lets_children_write(patch: Patch) -> None:
    patch.setattr("rerail.durable._held", ())
    patch.setattr("rerail.durable._forget_in_child", lambda: None)
    patch.setattr(durable.Lock, "release", lambda _self: None)


BROKEN_STORES: list[tuple[Callable[[Patch], None], str]] = [
    (keeps_for_later, "test_what_was_appended_survives_the_death_of_its_writer"),
    (excludes_nobody, "test_a_run_has_one_owner_among_all_processes_until_that_one_dies"),
    (swallows_errors, "test_what_cannot_be_written_is_an_error_and_is_written_when_it_can_be"),
    (drops_what_failed, "test_what_cannot_be_written_is_an_error_and_is_written_when_it_can_be"),
    (is_always_alive, "test_closing_is_giving_up"),
    (believes_the_dead_alive, "test_a_run_has_one_owner_among_all_processes_until_that_one_dies"),
    (lets_children_write, "test_a_forked_child_cannot_write_and_does_not_keep_the_run"),
]


def ask(contract: Any, test: str, **fixtures: Any) -> None:
    function = getattr(contract, test)
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    function(**{name: fixtures[name] for name in names})


@pytest.mark.parametrize(("plant", "test"), BROKEN_STORES, ids=[plant.__name__ for plant, _ in BROKEN_STORES])
def test_a_store_that_breaks_a_promise_does_not_pass(
    tmp_path: Path, monkeypatch: Patch, plant: Callable[[Patch], None], test: str
) -> None:
    def open_store() -> DirectoryStore:
        return DirectoryStore(str(tmp_path / ".rerail"))

    ask(SharedStoreContract(), test, store=open_store(), open_store=open_store)
    for entry in (tmp_path / ".rerail" / "runs").iterdir():
        durable.remove_tree(str(entry))
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(BaseException):  # noqa: B017, PT011 - an assertion, or whatever comes of the bug before
            ask(SharedStoreContract(), test, store=open_store(), open_store=open_store)


def never_wakes(patch: Patch) -> None:
    patch.setattr(LocalExecutor, "wake", lambda _self: None)
    patch.setattr("rerail.testing.executor_contract._LONG", 0.2)


def suspends_nobody(patch: Patch) -> None:
    patch.setattr(LocalExecutor, "suspend", lambda _self, _number: None)
    patch.setattr("rerail.testing.executor_contract._LONG", 1.0)


def shifts_nothing(patch: Patch) -> None:
    patch.setattr(LocalExecutor, "shift_deadlines", lambda _self, _seconds: None)


def asks_nobody(patch: Patch) -> None:
    def stop(self: LocalExecutor, _grace: float) -> None:
        for child in self._children.values():
            child.stopped = True
            os.killpg(child.process.pid, signal.SIGKILL)

    patch.setattr(LocalExecutor, "stop", stop)


def leaves_children(patch: Patch) -> None:
    patch.setattr("rerail.executors.local._signal_group", os.kill)
    patch.setattr("rerail.executors.orphans.OrphanReaper.end", lambda *_: None)
    patch.setattr("rerail.testing.executor_contract._LONG", 1.0)


def shares_its_input(patch: Patch) -> None:
    spawned = spawn
    patch.setattr(
        "rerail.executors.local.spawn", lambda argv, env, cwd, to: spawned(argv, env, cwd, (os.dup(0), *to[1:]))
    )


BROKEN_EXECUTORS = [
    (asks_nobody, "test_what_ends_when_it_is_asked_is_given_the_time"),
    (leaves_children, "test_whoever_is_left_behind_delays_nobody"),
    (shares_its_input, "test_a_process_is_given_all_that_was_ordered"),
    (never_wakes, "test_waiting_ends_when_it_is_woken_or_when_patience_does"),
    (suspends_nobody, "test_what_is_suspended_stands_still_and_its_time_limit_with_it"),
    (shifts_nothing, "test_what_is_suspended_stands_still_and_its_time_limit_with_it"),
]


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[LocalExecutor]:
    logs = tmp_path / "logs"
    logs.mkdir()
    made = LocalExecutor(
        lambda name: durable.open_log(str(logs / name)),
        inline=False,
        environ=os.environ,
        mask=Mask(()),
        invocation=f"invocation-{os.urandom(8).hex()}",
    )
    yield made
    made.close()


@pytest.mark.parametrize(("plant", "test"), BROKEN_EXECUTORS, ids=[plant.__name__ for plant, _ in BROKEN_EXECUTORS])
def test_an_executor_that_breaks_a_promise_does_not_pass(
    tmp_path: Path, monkeypatch: Patch, executor: LocalExecutor, plant: Callable[[Patch], None], test: str
) -> None:
    plant(monkeypatch)
    with pytest.raises(BaseException):  # noqa: B017, PT011
        ask(ExecutorContract(), test, executor=executor, tmp_path=tmp_path)
