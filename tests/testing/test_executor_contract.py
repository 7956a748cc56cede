"""The contract of executors has teeth: one that breaks a promise does not pass."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rerail import durable
from rerail.core.masking import Mask
from rerail.executors.local import LocalExecutor, spawn
from rerail.ports import Capabilities
from rerail.testing import ExecutorContract

Patch = pytest.MonkeyPatch


def ask(contract: Any, test: str, **fixtures: Any) -> None:
    function = getattr(contract, test)
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    function(**{name: fixtures[name] for name in names})


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


def says_it_has_no_guards(patch: Patch) -> None:
    patch.setattr(LocalExecutor, "capabilities", Capabilities(shares_files=True))


BROKEN_EXECUTORS = [
    (says_it_has_no_guards, "test_it_says_what_it_can_do_and_that_does_not_change"),
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
