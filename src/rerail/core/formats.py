"""The formats of state files: one version for each, and the table of migrations from an old version to the next. Pure.

Old formats are read for ever, newer ones are refused. To change a format: raise its version, and add to its migrations
under the old version a function from the bytes of one document of that version to those of the next. A reader proves
the bytes as they stand, then calls `upgraded`, then decodes: so checksums are always those of the writer.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rerail.errors import FormatTooNew


class Format(msgspec.Struct, frozen=True):
    """A kind of document: a file, or a line of one."""

    name: str
    version: int
    migrations: dict[int, Callable[[bytes], bytes]] = {}  # version → a document of it as one of the next


JOURNAL = Format("journal", 1)
HEADER = Format("run.json", 1)
CHECKPOINT = Format("checkpoint.json", 1)
INDEX = Format("index.jsonl", 1)


def check_version(known: Format, version: int, *, where: str, writer: str = "") -> None:
    """Raise FormatTooNew if a document was written by a rerail that knows more than this one."""
    if version > known.version:
        by = f", written by rerail {writer}" if writer else ""
        raise FormatTooNew(
            f"{where}: {known.name} format {version}{by}; this rerail reads up to {known.version}",
            hint="pip install --upgrade rerail",
        )


def upgraded(known: Format, version: int, document: bytes) -> bytes:
    """Return a document as the present version has it."""
    for old in sorted(known.migrations):
        if old >= version:
            document = known.migrations[old](document)
    return document
