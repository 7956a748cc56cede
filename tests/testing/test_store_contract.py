"""The contracts have teeth: a store or an executor that breaks a promise does not pass."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rerail import durable
from rerail.core.events import ApprovalGiven, Event
from rerail.errors import StateUnwritable
from rerail.ports import Ownership, Repair
from rerail.stores.claims import DirectoryClaims
from rerail.stores.content_store import DirectoryContentStore
from rerail.stores.directory import DirectoryStore
from rerail.stores.inbox import DirectoryInbox
from rerail.stores.logs import DirectoryLogs
from rerail.stores.writer import DirectoryRunWriter
from rerail.testing import SharedStoreContract

Patch = pytest.MonkeyPatch


def keeps_for_later(patch: Patch) -> None:
    """Says that it is kept and writes it the next time."""
    append, late = DirectoryRunWriter.append, dict[int, list[Event]]()

    def later(self: DirectoryRunWriter, events: Sequence[Event]) -> None:
        append(self, late.pop(id(self), []))
        late[id(self)] = list(events)

    patch.setattr(DirectoryRunWriter, "append", later)


def excludes_nobody(patch: Patch) -> None:
    patch.setattr("rerail.durable.lock.fcntl.flock", lambda _fd, _how: None)


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
    patch.setattr("rerail.durable.lock._held", ())
    patch.setattr("rerail.durable.lock._forget_in_child", lambda: None)
    patch.setattr(durable.Lock, "release", lambda _self: None)


def forgets_messages_once_taken(patch: Patch) -> None:
    take = DirectoryInbox.take

    def taking(self: DirectoryInbox) -> list[ApprovalGiven]:
        found = take(self)
        self.clear()
        return found

    patch.setattr(DirectoryInbox, "take", taking)


def sends_nothing(patch: Patch) -> None:
    patch.setattr(DirectoryStore, "send", lambda _self, _run_id, _message: None)


def reads_logs_from_their_beginning(patch: Patch) -> None:
    read = DirectoryLogs.read
    patch.setattr(DirectoryLogs, "read", lambda self, name, _offset, size: read(self, name, 0, size))


def starts_logs_anew(patch: Patch) -> None:
    def open_log(self: DirectoryRunWriter, name: str) -> int:
        return os.open(os.path.join(self.path, "logs", name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    patch.setattr(DirectoryRunWriter, "open_log", open_log)


def believes_old_rows(patch: Patch) -> None:
    patch.setattr("rerail.stores.index.is_current", lambda _row, _root: True)


def has_one_stamp(patch: Patch) -> None:
    patch.setattr(DirectoryStore, "stamp", lambda _self, _run_id: "")


def believes_every_copy(patch: Patch) -> None:
    patch.setattr(DirectoryContentStore, "defect", lambda self, sha256: "" if self.has(sha256) else "missing")


def pins_nothing(patch: Patch) -> None:
    patch.setattr(DirectoryContentStore, "pinned", lambda _self: contextlib.nullcontext())


def leaves_staged_files(patch: Patch) -> None:
    publish = DirectoryContentStore.publish

    def copying(self: DirectoryContentStore, staged: Iterable[tuple[str, str]]) -> None:
        pairs = [(shutil.copy(path, f"{path}.copy"), sha256) for path, sha256 in staged]
        publish(self, pairs)

    patch.setattr(DirectoryContentStore, "publish", copying)


def destroys_what_it_quarantines(patch: Patch) -> None:
    def destroy(_self: DirectoryRunWriter, path: str, name: str) -> str:
        os.unlink(path)
        return name

    patch.setattr(DirectoryRunWriter, "quarantine", destroy)


def keeps_the_first_results(patch: Patch) -> None:
    save = DirectoryRunWriter.save_results

    def once(self: DirectoryRunWriter, name: str, lines: Iterable[bytes]) -> str:
        path = os.path.join(self.path, "results", f"{name}.jsonl")
        return path if os.path.exists(path) else save(self, name, lines)

    patch.setattr(DirectoryRunWriter, "save_results", once)


def lets_everybody_claim(patch: Patch) -> None:
    patch.setattr(DirectoryClaims, "locked", lambda _self: contextlib.nullcontext())


def repairs_beside_an_owner(patch: Patch) -> None:
    patch.setattr(DirectoryStore, "repair", lambda _self, _run_id: Repair(reason=""))


BROKEN_STORES: list[tuple[Callable[[Patch], None], str]] = [
    (keeps_for_later, "test_what_was_appended_survives_the_death_of_its_writer"),
    (excludes_nobody, "test_a_run_has_one_owner_among_all_processes_until_that_one_dies"),
    (swallows_errors, "test_what_cannot_be_written_is_an_error_and_is_written_when_it_can_be"),
    (drops_what_failed, "test_what_cannot_be_written_is_an_error_and_is_written_when_it_can_be"),
    (is_always_alive, "test_closing_is_giving_up"),
    (believes_the_dead_alive, "test_a_run_has_one_owner_among_all_processes_until_that_one_dies"),
    (lets_children_write, "test_a_forked_child_cannot_write_and_does_not_keep_the_run"),
    (forgets_messages_once_taken, "test_a_message_is_there_until_it_is_cleared"),
    (sends_nothing, "test_a_message_of_another_process_reaches_the_owner_after_its_sender_died"),
    (reads_logs_from_their_beginning, "test_logs_are_appended_to_and_read_from_anywhere"),
    (starts_logs_anew, "test_logs_are_appended_to_and_read_from_anywhere"),
    (believes_old_rows, "test_the_index_tells_nothing_that_is_not_true_now"),
    (has_one_stamp, "test_the_stamp_differs_once_the_journal_does"),
    (believes_every_copy, "test_a_copy_that_is_missing_or_other_content_is_not_used"),
    (pins_nothing, "test_copies_that_no_run_needs_are_collected_and_pinned_ones_are_not"),
    (pins_nothing, "test_copies_are_pinned_for_all_processes_until_the_one_that_pins_dies"),
    (leaves_staged_files, "test_copies_are_published_by_their_digest"),
    (destroys_what_it_quarantines, "test_what_is_in_quarantine_is_out_of_the_way_and_not_lost"),
    (keeps_the_first_results, "test_results_are_read_back_and_replaced"),
    (lets_everybody_claim, "test_one_process_at_a_time_has_the_claims_until_it_dies"),
    (repairs_beside_an_owner, "test_a_run_is_proved_and_one_that_is_whole_is_not_repaired"),
]


def ask(contract: Any, test: str, **fixtures: Any) -> None:
    function = getattr(contract, test)
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    function(**{name: fixtures[name] for name in names})


@pytest.mark.parametrize(
    ("plant", "test"), BROKEN_STORES, ids=[f"{plant.__name__}-{at}" for at, (plant, _) in enumerate(BROKEN_STORES)]
)
def test_a_store_that_breaks_a_promise_does_not_pass(
    tmp_path: Path, monkeypatch: Patch, plant: Callable[[Patch], None], test: str
) -> None:
    def tried_in(place: Path) -> None:
        def open_store() -> DirectoryStore:
            return DirectoryStore(str(place / ".rerail"))

        place.mkdir()
        ask(SharedStoreContract(), test, store=open_store(), open_store=open_store, tmp_path=place)

    tried_in(tmp_path / "sound")
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(BaseException):  # noqa: B017, PT011 - an assertion, or whatever comes of the bug before
            tried_in(tmp_path / "broken")
