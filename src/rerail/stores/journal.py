r"""The bytes of a journal: one JSON object a line, each chained to the one before.

    {"sum":"9f86d081884c7d65","seq":7,"ack":5,"event":"step-completed",...}\n

`sum` is the first 16 hex digits of SHA-256 over the sum of the previous record and the raw bytes of this line
after its own sum (newline excluded). The record before the first has the sum of the run id. `seq` counts from
1 without gaps; the line that opens a segment carries the number of the record before it. `ack` is the newest
record that was known to be on the disk when this one was written: it is what tells a torn end from damage. A
record that cannot be read counts as torn only if nothing that follows it was written after it had been synced, and
what was written with it is not whole.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import get_args

import msgspec

from rerail.core.events import Event

SUM_CHARS = 16
_PREFIX = b'{"sum":"'
_BODY = len(_PREFIX) + SUM_CHARS + 1  # the body begins after the closing quote
_ENVELOPE = re.compile(rb',"seq":(\d{1,18}),"ack":(\d{1,18}),')
_ENVELOPE_START = re.compile(rb'\{"sum":"[0-9a-f]{16}","seq":\d{1,18},"ack":\d{1,18},')
_MAX_ENVELOPE = 100
_BLOCK = 1 << 16
_LINE = re.compile(rb'\{"sum":"[^"\n]{0,64}","seq":(\d{1,18}),"ack":(\d{1,18}),"event":')

_encode = msgspec.json.Encoder().encode
_sha256 = hashlib.sha256


def first_sum(run_id: str) -> str:
    """Return the sum a run's first record is chained to."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:SUM_CHARS]


def chained(previous: str, body: bytes) -> str:
    """Return the sum of a record."""
    return hashlib.sha256(previous.encode() + body).hexdigest()[:SUM_CHARS]


def encode_line(content: bytes, previous: str, seq: int, acked: int) -> tuple[bytes, str]:
    """Return the line of one encoded JSON object, and its sum."""
    body = b',"seq":%d,"ack":%d,%b' % (seq, acked, content[1:])
    sum_ = chained(previous, body)
    return b'%b%b"%b\n' % (_PREFIX, sum_.encode(), body), sum_


def encode(events: Sequence[Event], previous: str, seq: int, acked: int) -> tuple[bytes, str]:
    """Return the lines of these events, numbered from `seq`, and the last sum. Written out: every step pays for it."""
    sum_ = previous.encode()
    ack = b',"ack":%d,' % acked
    lines = []
    for number, event in enumerate(events, seq):
        body = b',"seq":%d%b%b' % (number, ack, _encode(event)[1:])
        sum_ = _sha256(sum_ + body).hexdigest()[:SUM_CHARS].encode()
        lines.append(b'%b%b"%b\n' % (_PREFIX, sum_, body))
    return b"".join(lines), sum_.decode()


class Undecodable(Exception):
    """A record whose checksum holds and that is no event: of a newer rerail, or (`known`) of a kind we do know."""

    def __init__(self, seq: int, line: bytes, error: Exception) -> None:
        super().__init__(str(error))
        self.seq = seq
        tag = msgspec.json.decode(line, type=_Tagged).event
        self.known = tag in {kind.__struct_config__.tag for kind in get_args(Event)}


class _Tagged(msgspec.Struct):
    event: str


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A place between two records of a segment."""

    offset: int
    seq: int  # of the record before it
    sum: str  # likewise
    line: int = 0  # how many lines of the segment precede it


class JournalFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why reading stopped before the end of the bytes."""

    at: Position
    why: str


class VerifiedLines(msgspec.Struct, kw_only=True):
    """Verified raw lines of a segment, their end, and the fault there if there is one."""

    lines: list[tuple[int, bytes]]  # seq, raw line
    end: Position
    bad: JournalFault | None = None


def written(data: bytes, start: int = 0) -> int:
    """Return the end of the records: space written in advance is newlines. Makes no copy: it may be gigabytes."""
    end = len(data)
    while end > start:
        block = data[max(end - _BLOCK, start) : end]
        kept = len(block.rstrip(b"\n"))
        if kept:
            return end - len(block) + kept
        end -= len(block)
    return start


def verify(data: bytes, start: Position) -> VerifiedLines:
    """Walk the chain from `start` as far as it holds."""
    lines: list[tuple[int, bytes]] = []
    here = start
    size = written(data) + 1
    while here.offset < size - 1:
        stop = data.find(b"\n", here.offset)
        if stop < 0:  # not even the newline that ends a line
            return VerifiedLines(lines=lines, end=here, bad=JournalFault(at=here, why="the last line has no end"))
        line = data[here.offset : stop]
        why = _fault(line, here)
        if why:
            return VerifiedLines(lines=lines, end=here, bad=JournalFault(at=here, why=why))
        here = Position(offset=stop + 1, seq=here.seq + 1, sum=sum_of(line), line=here.line + 1)
        lines.append((here.seq, line))
    return VerifiedLines(lines=lines, end=here)


def _fault(line: bytes, here: Position) -> str:
    """Return the fault of a line that should follow `here`; '' if it has none."""
    if not line.startswith(_PREFIX) or line[_BODY - 1 : _BODY] != b'"':
        return "not a journal record"
    stored = line[len(_PREFIX) : _BODY - 1]
    if stored != chained(here.sum, line[_BODY:]).encode():
        return "its checksum does not match"
    envelope = _ENVELOPE.match(line, _BODY)
    if envelope is None or int(envelope[1]) != here.seq + 1:
        return f"it is not record {here.seq + 1}"
    return ""


def first_line(data: bytes) -> bytes | None:
    """Return the first whole line of a segment, if there is one."""
    stop = data.find(b"\n")
    return data[:stop] if stop >= 0 else None


def sum_of(line: bytes) -> str:
    """Return the sum a verified line carries."""
    return line[len(_PREFIX) : _BODY - 1].decode()


def opening_was_synced(data: bytes) -> bool:
    """Return whether a segment whose opening cannot be read had been synced.

    A record that names another one of the same segment as acknowledged proves that both it and the opening were on
    the disk.
    """
    lowest: int | None = None
    for match in _LINE.finditer(data):
        seq, ack = int(match[1]), int(match[2])
        if ack >= seq:  # an opening, whole or torn: it proves nothing about itself
            continue
        lowest = seq if lowest is None else min(lowest, seq)
        if ack >= lowest:
            return True
    return False


def was_synced(data: bytes, bad: Position) -> bool:
    """Return whether anything after the bad place proves that the record there had been on the disk.

    A later line that names it (or a newer one) as acknowledged was written after it was synced; chance does not
    write such a line. So what stood there was durable once, and is damaged, not torn. Nor is it torn if the record that
    follows it was written with it and is whole, with nothing left out between them: a cut leaves space written in
    advance, or zeros; it does not alter what stands before something that it left whole.
    """
    later = _LINE.finditer(data, bad.offset)
    if any(int(match[1]) > bad.seq and int(match[2]) > bad.seq for match in later):
        return True
    following = next((match for match in _LINE.finditer(data, bad.offset + 1) if int(match[1]) == bad.seq + 2), None)
    between = data[bad.offset : following.start()] if following else b""
    if following is None or b"\n\n" in between or b"\0" in between:
        return False
    line = data[following.start() : data.find(b"\n", following.start())]
    end = data.find(b"\n", bad.offset)
    carried = data[bad.offset + len(_PREFIX) : bad.offset + _BODY - 1].decode("latin-1")
    sums = (carried, chained(bad.sum, data[bad.offset + _BODY : end]))
    return any(not _fault(line, Position(offset=0, seq=bad.seq + 1, sum=sum_)) for sum_ in sums)


@cache
def _decoder() -> msgspec.json.Decoder[Event]:
    return msgspec.json.Decoder(Event)  # made when it is needed: it costs as much as a small import


def wanted(tags: Collection[str], step: str) -> re.Pattern[bytes]:
    """Return a pattern for records of these kinds about a step; it begins with plain bytes, which are skipped to fast."""
    kinds = b"|".join(re.escape(tag.encode()) for tag in tags)
    return re.compile(rb'"event":"(?:%b)","at":"[^"\n]*","step":%b[,}]' % (kinds, re.escape(_encode(step))))


def matching(data: bytes | mmap.mmap, pattern: re.Pattern[bytes], start: int = 0) -> Iterator[bytes]:
    """Yield the lines whose records a pattern of `wanted` finds; the same words inside outputs of a step do not count."""
    for match in pattern.finditer(data, start):
        at = match.start()
        begin = data.rfind(b"\n", max(at - _MAX_ENVELOPE, 0), at) + 1
        if _ENVELOPE_START.fullmatch(data, begin, at):
            end = data.find(b"\n", match.end())
            yield data[begin : end if end >= 0 else len(data)]


def decode(line: bytes) -> Event:
    """One record that is known to be one."""
    return _decoder().decode(line)


def decode_all(lines: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, Event]]:
    """Yield the records of verified lines; raise Undecodable for one that is not an event to this version."""
    for seq, line in lines:
        try:
            yield seq, _decoder().decode(line)
        except msgspec.ValidationError as error:
            raise Undecodable(seq, line, error) from error
