"""Finding records by what they are about, without decoding the others: of 100 000 items, in a moment."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterator, Mapping

from rerail.core.events import Event
from rerail.stores import journal, segments


def find(directory: str, run_id: str, lengths: Mapping[int, int], tags: Collection[str], step: str) -> Iterator[Event]:
    """The records of these kinds about a step, in the counted bytes of these segments, which somebody has proved."""
    pattern = journal.wanted(tags, step)
    if any(entry.startswith("evidence-") for entry in os.listdir(directory)):
        for _, line in segments.given_up(directory, run_id):
            yield from map(journal.decode, journal.matching(line, pattern))
    for number, length in lengths.items():
        with open(os.path.join(directory, segments.file_name(number)), "rb") as file:
            view = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)
        with view:
            yield from map(journal.decode, journal.matching(view, pattern))
