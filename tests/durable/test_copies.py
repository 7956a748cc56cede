"""Durability of files that are not state."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from rerail.durable import copies


def test_many_files_are_synced_by_their_file_systems_and_a_failure_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(tmp_path / f"f{number}") for number in range(copies.MANY + 1)]
    for path in paths:
        Path(path).touch()
    asked: list[int] = []
    answer = 0

    def syncfs(fd: int) -> int:
        asked.append(os.fstat(fd).st_dev)
        ctypes.set_errno(errno.EIO)
        return answer

    monkeypatch.setattr("rerail.durable.copies._syncfs", lambda: syncfs)
    copies.sync_files(paths)
    assert asked == [tmp_path.stat().st_dev], "once for all of them"
    answer = -1
    with pytest.raises(OSError, match="Input/output error"):
        copies.sync_files(paths)
