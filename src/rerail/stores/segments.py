"""A journal is a chain of segments, one per invocation of the run (or per file that could not be written any more).

Every segment opens with a line that says where the one before it ends. Bytes after that place do not count: they
are what a writer added that was never acknowledged, or that lost its run. A segment whose opening was never synced
is void. Reading changes nothing.
"""

import contextlib
import hashlib
import mmap
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from rerail import durable
from rerail.core.checkpoint import Checkpoint
from rerail.core.events import Event
from rerail.core.formats import JOURNAL, check_version, upgraded
from rerail.core.model import RunHeader
from rerail.core.state import RunState, fold
from rerail.errors import FormatTooNew, IllegalEvent, JournalDamaged, StateDamaged, StateUnreadable
from rerail.stores import journal
from rerail.stores.journal import Position

BEGUN = "begun"  # a file beside the journal, as many bytes long as the number of the newest segment that was durable

_NAME = re.compile(r"journal-(\d{4,9})\.jsonl")
_EVIDENCE = re.compile(r"evidence-(\d{4,9})")


class SegmentEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Where a segment of the journal ends."""

    segment: int
    length: int
    seq: int
    sum: str


class Opening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="segment-opened"):
    """The first line of a segment. `base` is the proved state where `rerail repair` had to give records up."""

    format: int
    rerail: str
    segment: int
    header: RunHeader  # what run.json says, proved
    after: SegmentEnd | None = None
    reason: str = ""
    ignored: int = 0  # bytes of the previous segment after its end, already told
    base: Checkpoint | None = None


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the journal a snapshot stands for: segments with their digests, and where it ends."""

    segment: int
    seq: int
    sum: str
    offset: int
    sha256: dict[str, str]  # segment number: digest of its counted bytes


class Chain(msgspec.Struct, kw_only=True):
    """A verified journal. `lines` are the raw records after those that the snapshot covers."""

    lines: list[tuple[int, bytes]]
    end: SegmentEnd | None
    newest: int  # highest segment number there is, void ones included
    notices: list[str]
    base: Checkpoint | None = None
    covered: bool = False  # the snapshot agrees with the journal: start from it
    digests: dict[int, str] = {}
    ignored: int = 0  # bytes after the end of the last segment
    uneven: str = ""  # said if the invocation that wrote the last segment crashed: its file was truncated
    header: RunHeader | None = None
    lengths: dict[int, int] = {}  # segment number: counted bytes, oldest first


class Segment(msgspec.Struct, kw_only=True):
    """One file of the journal, read."""

    number: int
    data: bytes
    opening: Opening | None
    sealed: int = -1  # counted length, or -1 for the last one: to its end


def file_name(number: int) -> str:
    return f"journal-{number:04d}.jsonl"


def numbers(directory: str) -> list[int]:
    """Return the numbers of the segments there are, ascending."""
    try:
        entries = os.listdir(directory)
    except OSError as error:
        raise StateUnreadable(f"{directory}: {error.strerror}", hint="make it readable, then: rerail list") from error
    return sorted(int(match[1]) for entry in entries if (match := _NAME.fullmatch(entry)))


def load(directory: str, run_id: str, covered: Coverage | None) -> Chain:
    """Read and verify a journal; raises JournalDamaged, FormatTooNew, StateUnreadable."""
    found = [_read(directory, run_id, number) for number in numbers(directory)]
    newest = found[-1].number if found else 0
    notices: list[str] = []
    durable_to = recorded_newest(directory)
    chain = _linked(found, run_id, max(covered.segment if covered else 0, durable_to), notices)
    if chain and chain[-1].number < durable_to:
        why = f"the file is missing, but {BEGUN} shows that there was one"
        raise _damaged(run_id, file_name(durable_to), 0, why)
    if not chain:
        if covered is not None:
            raise _damaged(run_id, file_name(covered.segment), 0, "the journal is gone, but checkpoint.json knows more")
        began = _why_begun(directory)
        if began:
            raise _damaged(run_id, file_name(newest or 1), 0, f"the journal is gone, but {began}")
        return Chain(lines=[], end=None, newest=newest, notices=notices)
    if covered is not None and _agrees(chain, covered):
        result = _from_snapshot(chain, run_id, covered, newest, notices)
    else:
        result = _from_start(chain, run_id, covered, newest, notices)
    opening = chain[-1].opening
    before = opening.after.seq if opening is not None and opening.after is not None else 0
    # Its first records become durable with a segment, before anybody bears witness to it.
    if chain[-1].number <= durable_to and result.end is not None and result.end.seq == before:
        raise _damaged(run_id, file_name(chain[-1].number), result.end.length, "all of its records are lost")
    result.header = opening.header if opening else None
    result.lengths = {segment.number: segment.sealed for segment in chain if segment is not chain[-1]}
    if result.end is not None:
        result.lengths[result.end.segment] = result.end.length
    return result


def record_newest(directory: str, number: int) -> None:
    """Note that a segment is durable, now that it is: a reader that does not find it later knows that it was lost.

    Not synced: it reaches the disk with the next checkpoint at the latest, and never before what it speaks of.
    """
    with contextlib.suppress(OSError):
        durable.set_length(os.path.join(directory, BEGUN), number)


def recorded_newest(directory: str) -> int:
    """Return the number of the newest segment that is known to have been durable; 0 if nothing tells."""
    try:
        return os.lstat(os.path.join(directory, BEGUN)).st_size
    except OSError:
        return 0


def _why_begun(directory: str) -> str:
    """Return the sign that a run without a readable record has begun; '' if there is none."""
    try:
        entries = os.listdir(directory)
        logs = os.listdir(os.path.join(directory, "logs")) if "logs" in entries else []
    except OSError:
        return ""
    if logs:  # nothing starts before the journal says so
        return "logs/ shows that steps have run"
    repairs = [entry for entry in entries if _EVIDENCE.fullmatch(entry)]
    if repairs:
        return f"{max(repairs)} shows that it was repaired"
    return f"{BEGUN} shows that there was one" if recorded_newest(directory) else ""


def evidence(directory: str) -> list[tuple[int, str]]:
    """List the evidence of repairs, oldest first: the number of the segment that each went on in, and the directory."""
    with contextlib.suppress(OSError):
        found = [(int(match[1]), entry) for entry in os.listdir(directory) if (match := _EVIDENCE.fullmatch(entry))]
        return [(number, os.path.join(directory, entry)) for number, entry in sorted(found)]
    return []


def salvage(
    directory: str, run_id: str, covered: Coverage | None = None, kept: dict[int, Segment] | None = None
) -> tuple[list[tuple[int, bytes]], Opening | None]:
    """Return the records before the first damage, and the opening they rest on.

    With `covered`, only those that follow a snapshot. Never raises for damage. Segments that are `kept` are not read
    again by the next call about the same directory.
    """
    kept = {} if kept is None else kept
    lines: list[tuple[int, bytes]] = []
    root: Opening | None = None
    for number in numbers(directory):
        segment = kept[number] = kept.get(number) or _read(directory, run_id, number)
        opening = segment.opening
        if covered is not None and number <= covered.segment:
            if number == covered.segment:
                start = Position(offset=covered.offset, seq=covered.seq, sum=covered.sum)
                lines = journal.verify(segment.data, start).lines
            continue
        if opening is None:
            continue
        after = opening.after
        if covered is None and (root is None or opening.base is not None):
            if after is not None and opening.base is None:
                break  # what it continues is lost
            root, lines = opening, []
        elif after is None or not _continues(lines, after, root, covered):
            break
        else:
            lines = [record for record in lines if record[0] <= after.seq]
        start = Position(offset=0, seq=after.seq if after else 0, sum="")
        lines += journal.verify(segment.data, _after_opening(segment.data, start)).lines
    return lines, root


def superseded_records(directory: str, run_id: str) -> list[tuple[int, bytes]]:
    """Return the proved records of journals that a repair quarantined: the state it continued from has them."""
    found: list[tuple[int, bytes]] = []
    put_aside = evidence(directory)
    for number, place in put_aside:
        # The segment that went on from there may have been put aside itself since.
        places = [directory, *(later for after, later in put_aside if after > number)]
        name = file_name(number)
        where = next((one for one in places if os.path.exists(os.path.join(one, name))), "")
        opening = _read(where, run_id, number).opening if where else None
        base = opening.base if opening is not None else None
        if base is not None:
            lines, _ = salvage(place, run_id)
            found += [(seq, line) for seq, line in lines if seq <= base.internal.seq]
    return found


def _continues(lines: list[tuple[int, bytes]], after: SegmentEnd, root: Opening | None, covered: Coverage | None) -> bool:
    """Return whether a segment goes on from a place that is proved."""
    if covered is not None and (after.seq, after.sum) == (covered.seq, covered.sum):
        return True
    if root is not None and root.after is not None and (after.seq, after.sum) == (root.after.seq, root.after.sum):
        return True
    return any(seq == after.seq and journal.sum_of(line) == after.sum for seq, line in reversed(lines))


def _read(directory: str, run_id: str, number: int) -> Segment:
    path = os.path.join(directory, file_name(number))
    try:
        data = durable.read_file(path)
    except OSError as error:
        raise StateUnreadable(
            f"{path}: cannot be read: {error.strerror}", hint=f"make it readable, then: rerail resume {run_id}"
        ) from error
    return Segment(number=number, data=data, opening=_opening(data, run_id, number))


def _opening(data: bytes, run_id: str, number: int) -> Opening | None:
    """Return the opening of a segment if its own checksum holds, else None."""
    line = journal.first_line(data)
    if line is None:
        return None
    try:
        envelope = msgspec.json.decode(line, type=_OpeningVersion)
        before = envelope.after.sum if envelope.after else journal.first_sum(run_id)
        seq = envelope.after.seq if envelope.after else 0
        if journal.verify(line + b"\n", Position(offset=0, seq=seq - 1, sum=before)).bad:
            return None
        check_version(JOURNAL, envelope.format, where=file_name(number), writer=envelope.rerail)
        opening = msgspec.json.decode(upgraded(JOURNAL, envelope.format, line), type=Opening)
        return opening if opening.segment == number else None  # a copy under another name opens nothing
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _OpeningVersion(msgspec.Struct, kw_only=True):
    format: int
    rerail: str
    after: SegmentEnd | None = None


def _linked(found: Sequence[Segment], run_id: str, durable_to: int, notices: list[str]) -> list[Segment]:
    """Return the segments that count, oldest first, each sealed where its successor continues.

    Those up to number `durable_to` are known to have been synced.
    """
    by_number = {segment.number: segment for segment in found}
    chain: list[Segment] = []
    for segment in reversed(found):
        if chain:
            break
        if segment.opening is not None:
            chain.append(segment)
        elif segment.number <= durable_to or journal.opening_was_synced(segment.data):
            raise _damaged(run_id, file_name(segment.number), 0, "its first line is damaged")
        else:
            notices.append(f"{file_name(segment.number)}: its first record is incomplete; ignored")
    while chain and (opening := chain[0].opening) and opening.after is not None and opening.base is None:
        after = opening.after
        previous = by_number.get(after.segment)
        if previous is None:
            raise _damaged(run_id, file_name(after.segment), 0, "the file is missing")
        if previous.opening is None:
            raise _damaged(run_id, file_name(after.segment), 0, "its first line is damaged")
        previous.sealed = after.length
        extra = journal.written(previous.data, after.length) - after.length
        if extra != opening.ignored and opening.ignored >= 0:
            notices.append(f"{file_name(previous.number)}: {extra} bytes after its end were never acknowledged; ignored")
        chain.insert(0, previous)
    return chain


def _agrees(chain: list[Segment], covered: Coverage) -> bool:
    """Return whether the bytes the snapshot stands for are the very bytes there are: one pass, nothing decoded."""
    known = {segment.number for segment in chain}
    if covered.segment not in known:
        return False
    for segment in chain:
        if segment.number > covered.segment:
            break
        length = covered.offset if segment.number == covered.segment else segment.sealed
        if 0 <= segment.sealed < length or len(segment.data) < length:
            return False
        digest = hashlib.sha256(memoryview(segment.data)[:length]).hexdigest()
        if covered.sha256.get(str(segment.number)) != digest:
            return False
    return True


def _from_snapshot(chain: list[Segment], run_id: str, covered: Coverage, newest: int, notices: list[str]) -> Chain:
    start = Position(offset=covered.offset, seq=covered.seq, sum=covered.sum)
    rest = [segment for segment in chain if segment.number >= covered.segment]
    result = _walk(rest, start, run_id, covered, newest, notices)
    result.covered = True
    result.digests = {
        segment.number: covered.sha256[str(segment.number)] for segment in chain if segment.number < covered.segment
    } | result.digests
    return result


def _from_start(chain: list[Segment], run_id: str, covered: Coverage | None, newest: int, notices: list[str]) -> Chain:
    opening = chain[0].opening
    assert opening is not None  # _linked keeps only segments that open
    if opening.after is not None:
        start = Position(offset=0, seq=opening.after.seq, sum=opening.after.sum)
    else:
        start = Position(offset=0, seq=0, sum=journal.first_sum(run_id))
    result = _walk(chain, start, run_id, covered, newest, notices)
    result.base = opening.base
    return result


def _walk(
    chain: list[Segment],
    start: Position,
    run_id: str,
    covered: Coverage | None,
    newest: int,
    notices: list[str],
) -> Chain:
    lines: list[tuple[int, bytes]] = []
    digests: dict[int, str] = {}
    here = start
    got = journal.VerifiedLines(lines=[], end=start)
    for segment in chain:
        if segment.sealed >= 0:
            segment.data = segment.data[: segment.sealed]  # in its place: it may be gigabytes
        data = segment.data
        if segment is not chain[0] or start.offset == 0:
            here = _after_opening(data, here)
        got = journal.verify(data, here)
        if got.bad is not None:
            _check_fault(segment, data, got.bad, run_id, covered, notices)
        here = got.end
        _check_seal(segment, here, chain, run_id)
        lines += got.lines
        digests[segment.number] = hashlib.sha256(memoryview(data)[: here.offset]).hexdigest()
    if covered is not None and here.seq < covered.seq:
        raise _damaged(
            run_id,
            file_name(chain[-1].number),
            here.offset,
            f"the journal ends at record {here.seq}, but checkpoint.json knows record {covered.seq}",
        )
    last = chain[-1]
    end = SegmentEnd(segment=last.number, length=here.offset, seq=here.seq, sum=here.sum)
    ignored = journal.written(last.data, here.offset) - here.offset
    result = Chain(lines=lines, end=end, newest=newest, notices=notices, digests=digests, ignored=ignored)
    if got.bad is None and len(last.data) % durable.AppendFile.PAGE:
        # Space for further records was there from the start; only a clean end gives it back.
        result.uneven = (
            f"{file_name(last.number)}: incomplete, truncated at byte {len(last.data)}, after a whole record;"
            " later records, if any, are lost"
        )
    return result


def _after_opening(data: bytes, before: Position) -> Position:
    """Where the records of a segment begin; its opening was verified when it was read."""
    line = journal.first_line(data) or b""
    return Position(offset=len(line) + 1, seq=before.seq, sum=journal.sum_of(line), line=1)


def _check_fault(
    segment: Segment, data: bytes, bad: journal.JournalFault, run_id: str, covered: Coverage | None, notices: list[str]
) -> None:
    """Raise StateDamaged for a fault, unless it is a torn tail: it is damage if it was ever known to be on the disk."""
    where, at = file_name(segment.number), bad.at
    sealed = segment.sealed >= 0
    if sealed or journal.was_synced(data, at) or (covered is not None and covered.seq > at.seq):
        raise _damaged(run_id, f"{where}:{at.line + 1}", at.offset, bad.why)
    lost = journal.written(data, at.offset) - at.offset
    notices.append(f"{where}: the last record is incomplete (torn write); {lost} bytes at byte {at.offset} ignored")


def _check_seal(segment: Segment, here: Position, chain: list[Segment], run_id: str) -> None:
    if segment is chain[-1]:
        return
    following = chain[chain.index(segment) + 1].opening
    after = following.after if following else None
    if after is None or (after.length, after.seq, after.sum) != (here.offset, here.seq, here.sum):
        raise _damaged(run_id, file_name(segment.number), here.offset, "it does not end where the next segment continues")


def _damaged(run_id: str, where: str, offset: int, why: str) -> JournalDamaged:
    return JournalDamaged(where, offset, why, hint=f"rerail repair {run_id}")


class SearchRange(msgspec.Struct, frozen=True):
    """The bytes to be searched: so many of each segment, which are proved, from a position on."""

    lengths: Mapping[int, int]
    since: tuple[int, int] = (0, 0)


def find(directory: str, run_id: str, extent: SearchRange, tags: Collection[str], step: str) -> Iterator[Event]:
    """Yield the records of these kinds about a step."""
    pattern = journal.wanted(tags, step)
    first, offset = extent.since
    if first == 0 and any(entry.startswith("evidence-") for entry in os.listdir(directory)):
        for _, line in superseded_records(directory, run_id):
            yield from map(journal.decode, journal.matching(line, pattern))
    for number, length in extent.lengths.items():
        if number < first:
            continue
        with durable.open_to_read(os.path.join(directory, file_name(number))) as file:
            view = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)
        with view:
            begin = offset if number == first else 0
            yield from map(journal.decode, journal.matching(view, pattern, begin))


def folded(chain: Chain, run_id: str, start: RunState | None) -> RunState:
    """Return the state a journal tells of, from its beginning or from where a snapshot stands."""
    try:
        return fold(decoded(chain, run_id), start)
    except IllegalEvent as error:
        raise StateDamaged(
            f"run {run_id}: the journal contradicts itself: {error.message}", hint=f"rerail repair {run_id}"
        ) from error


def decoded(chain: Chain, run_id: str) -> Iterable[tuple[int, Event]]:
    """Its records; raises StateDamaged or FormatTooNew for one that is none."""
    try:
        yield from journal.decode_all(chain.lines)
    except journal.Undecodable as error:
        if error.known:
            raise StateDamaged(
                f"run {run_id}: record {error.seq} of the journal makes no sense: {error}",
                hint=f"rerail repair {run_id}",
            ) from error
        raise FormatTooNew(
            f"run {run_id}: the journal holds a record this rerail does not know: {error}",
            hint="pip install --upgrade rerail",
        ) from error
