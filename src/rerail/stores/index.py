"""index.jsonl: the rows of runs that have come to rest, so that a list of thousands need not open each.

A cache, never trusted over the runs: a row counts only while the newest segment of its run is the very file it was made
from, untouched since. Written by the owner of a run when it releases it; readers write nothing and read the run
itself where there is no row. Appended, the last row of a run wins; what is not a whole row is passed over.
"""

import hashlib
import os

import msgspec

from rerail import durable
from rerail.core.formats import INDEX
from rerail.core.summary import Summary
from rerail.stores import segments

FILE_NAME = "index.jsonl"
COMPACT_BYTES = 1_000_000  # each time it has grown by this much, rows that no longer count are dropped

_SUM = 16


class Row(msgspec.Struct, frozen=True, gc=False):
    """A summary, and the file that vouches for it."""

    segment: int
    size: int
    modified: int
    inode: int
    summary: Summary
    format: int = INDEX.version


_decode = msgspec.json.Decoder(Row).decode


def append(root: str, run_dir: str, segment: int, summary: Summary) -> None:
    """Note the row of a run that is at rest; raises OSError."""
    status = os.stat(os.path.join(run_dir, segments.file_name(segment)))
    row = Row(segment, status.st_size, status.st_mtime_ns, status.st_ino, summary)
    path = os.path.join(root, FILE_NAME)
    line = _line(msgspec.json.encode(row))
    size = durable.append_line(path, line)
    if size // COMPACT_BYTES > (size - len(line)) // COMPACT_BYTES:  # this line has crossed the mark
        rows = load(root)
        lines = [_line(msgspec.json.encode(kept)) for kept in rows.values() if is_current(kept, root)]
        durable.replace_cache(path, b"".join(lines))


class DirectoryIndex:
    """The rows of a state directory, each of which counts while its run is as it was."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._rows = load(root)

    def get(self, run_id: str) -> Summary | None:
        row = self._rows.get(run_id)
        return row.summary if row is not None and is_current(row, self._root) else None


def load(root: str) -> dict[str, Row]:
    """Every row by its run, whether it still counts or not."""
    try:
        data = durable.read_file(os.path.join(root, FILE_NAME))
    except OSError:
        return {}
    rows: dict[str, Row] = {}
    for line in data.split(b"\n"):
        body = line[_SUM + 1 :]
        if _digest(body) == line[:_SUM]:
            try:
                row = _decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # of another version
            if row.format != INDEX.version:
                continue  # a cache is made anew, not migrated
            rows[row.summary.run_id] = row
    return rows


def is_current(row: Row, root: str) -> bool:
    """Return whether the run is still the one the row was made from."""
    path = f"{root}/runs/{row.summary.run_id}"
    try:
        status = os.stat(f"{path}/{segments.file_name(row.segment)}")
    except OSError:
        return False
    same = (status.st_size, status.st_mtime_ns, status.st_ino) == (row.size, row.modified, row.inode)
    return same and not os.path.exists(f"{path}/{segments.file_name(row.segment + 1)}")


def _line(body: bytes) -> bytes:
    return b"%b %b\n" % (_digest(body), body)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_SUM].encode()
