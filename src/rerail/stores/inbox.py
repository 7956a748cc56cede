"""The inbox of a run directory: messages from people to the process that owns the run, a file each."""

from __future__ import annotations

import contextlib
import os
import secrets

import msgspec

from rerail import durable
from rerail.core.events import ApprovalGiven
from rerail.errors import StateUnwritable
from rerail.stores.housekeeping import check_real_directory

INBOX = "inbox"
_ENDING = ".json"
MAX_BYTES = 100_000


def put(run_dir: str, said: ApprovalGiven) -> None:
    """Leave a message; durable on return."""
    place = os.path.join(run_dir, INBOX)
    check_real_directory(run_dir)
    try:
        durable.make_dir(place)
        durable.replace_file(os.path.join(place, f"{secrets.token_hex(8)}{_ENDING}"), msgspec.json.encode(said))
    except OSError as error:
        raise StateUnwritable(f"cannot write to {place}: {error.strerror}", hint=f"ls -l {run_dir}") from error


class DirectoryInbox:
    """Messages to one run as files, for the process that owns it."""

    def __init__(self, run_dir: str) -> None:
        self._place = os.path.join(run_dir, INBOX)
        self._taken: list[str] = []

    def take(self) -> list[ApprovalGiven]:
        try:
            names = os.listdir(self._place)
        except OSError:
            return []
        paths = [os.path.join(self._place, name) for name in names if name.endswith(_ENDING)]
        new = [path for path in paths if path not in self._taken]
        return sorted((said for path in new for said in self._read(path)), key=lambda said: (said.seen, said.at))

    def clear(self) -> None:
        if not self._taken:
            return
        for path in self._taken:
            with contextlib.suppress(OSError):
                durable.remove_file(path)
        self._taken = []

    def _read(self, path: str) -> list[ApprovalGiven]:
        try:
            with durable.open_to_read(path) as file:
                data = file.read(MAX_BYTES)
        except OSError:
            return []  # it may be readable later
        self._taken.append(path)
        try:
            return [msgspec.json.decode(data, type=ApprovalGiven)]
        except msgspec.DecodeError:
            return []  # not a message of ours: those appear whole, or not at all
