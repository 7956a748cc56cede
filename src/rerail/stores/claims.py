"""The claims of the runs of a state directory: a file for each run below `claims/`, and a lock for all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import msgspec

from rerail import durable
from rerail.core.claims import ClaimRecord
from rerail.durable import SharedLock
from rerail.errors import StateUnwritable

_ENDING = ".json"
TRIES = 50  # to write a record while other runs end
_decode = msgspec.json.Decoder(ClaimRecord).decode


class DirectoryClaims:
    """Claims as files."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        try:
            durable.make_dir(self._directory)
            lock = SharedLock(os.path.join(self._directory, "lock"), alone=True, wait=True)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            yield
        finally:
            lock.release()

    def records(self) -> list[ClaimRecord]:
        found = []
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self._directory)):
                if name.endswith(_ENDING):
                    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
                        found.append(_decode(durable.read_file(os.path.join(self._directory, name))))
        return found

    def write(self, record: ClaimRecord) -> None:
        try:
            durable.remove_temporaries(self._directory)  # of processes that were killed
            self._replace(self._path(record.run_id), msgspec.json.encode(record))
        except OSError as error:
            raise self._unwritable(error) from error

    def _replace(self, path: str, data: bytes) -> None:
        for _ in range(TRIES):
            try:
                return durable.replace_cache(path, data)
            except FileNotFoundError:  # another run, which released its claims, took the new file for a left-over
                continue
        return durable.replace_cache(path, data)

    def remove(self, run_id: str) -> None:
        with contextlib.suppress(OSError):
            durable.remove_file(self._path(run_id))

    def _path(self, run_id: str) -> str:
        return os.path.join(self._directory, run_id + _ENDING)

    def _unwritable(self, error: OSError) -> StateUnwritable:
        what = f"{self._directory}: cannot be written: {error.strerror}"
        return StateUnwritable(what, hint="make it writable, then run it again")
