"""Reading of a file, once: its digest, the checks of its content, whether it holds a secret, a copy on the way."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from typing import Any

import msgspec

from rerail.artifacts.paths import stamp_of
from rerail.core.masking import Mask
from rerail.core.model import Artifact
from rerail.durable import copies, create_file

MAX_PARSED = 64 << 20  # bytes of a file whose format is checked
SMALL = 1 << 17
DEEPEST = 200
_FORMS = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}


class ChangedWhileRead(Exception):
    """File that changed while it was read."""


class Cancelled(Exception):
    """Cancellation of a reading whose result is no longer wanted."""


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for more than the digest of a file: checks, a copy, a search for secrets."""

    checks: Artifact | None = None
    schema: str = ""  # full path
    staged: str = ""  # where a copy goes
    mask: Mask | None = None  # no copy of a file that holds one of its secrets
    known: Callable[[str], bool] = lambda _: False  # digests of which no copy is needed
    progress: Callable[[int], None] = lambda _: None  # called with the bytes read; may raise Cancelled


class FileReading(msgspec.Struct, kw_only=True):
    """Result of reading one file."""

    sha256: str
    size: int
    mode: int
    stamp: str
    staged: bool = False
    secret: bool = False
    problem: str = ""  # the check that fails


def read(path: str, demand: ReadRequest) -> FileReading:
    """Read a regular file; raise OSError, ChangedWhileRead, Cancelled."""
    fd = copies.open_regular(path)
    try:
        for _ in range(3):
            before = os.fstat(fd)
            reading = _read(fd, before, demand)
            if stamp_of(os.fstat(fd)) == reading.stamp and reading.size == before.st_size:
                break
            _unstage(demand)
        else:
            raise ChangedWhileRead(f"{path} changes while it is read: is something still writing it?")
        if demand.checks is not None:
            reading.problem = reading.problem or _sized(reading.size, demand.checks)
            if not reading.problem:
                reading.problem = _parsed(fd, demand, reading.size)
        return reading
    finally:
        os.close(fd)


def _read(fd: int, status: os.stat_result, demand: ReadRequest) -> FileReading:
    os.lseek(fd, 0, os.SEEK_SET)
    small = status.st_size <= SMALL
    search = _Search(demand)
    digest = hashlib.sha256()
    size = 0
    copy = -1
    lost = False
    whole = b""
    if demand.staged and not small and not demand.mask:
        copy = create_file(demand.staged)
    cloned = copy >= 0 and copies.clone(fd, copy)
    try:
        # Not beyond its length at the start: a file that grows as fast as it is read would never end.
        while size <= status.st_size and (chunk := os.read(fd, SMALL + 1 if small else copies.CHUNK)):
            digest.update(chunk)
            size += len(chunk)
            search.feed(chunk)
            demand.progress(len(chunk))
            if small:
                whole = whole + chunk if whole else chunk
            elif copy >= 0 and not cloned and not lost:
                lost = _write(copy, chunk)
    finally:
        if copy >= 0:
            os.close(copy)
    reading = FileReading(
        sha256=digest.hexdigest(),
        size=size,
        mode=stat.S_IMODE(status.st_mode),
        stamp=stamp_of(status),
        secret=search.secret,
        problem=search.problem(),
    )
    if lost:
        _unstage(demand)
    else:
        if not small and demand.staged and demand.mask and _is_wanted(reading, demand):
            _copy(fd, demand)  # not while it is read: only at its end is it known to hold no secret
        _settle_copy(reading, demand, whole if small else None)
    return reading


def _copy(fd: int, demand: ReadRequest) -> None:
    copy = create_file(demand.staged)
    try:
        if not copies.clone(fd, copy):
            os.lseek(fd, 0, os.SEEK_SET)
            while (chunk := os.read(fd, copies.CHUNK)) and not _write(copy, chunk):
                demand.progress(len(chunk))
    finally:
        os.close(copy)


def _write(copy: int, data: bytes) -> bool:
    """Write more of a copy; return whether it is lost. A copy is a convenience: a full disk there fails no step."""
    try:
        copies.write_on(copy, data)
    except OSError:
        return True
    return False


def _is_wanted(reading: FileReading, demand: ReadRequest) -> bool:
    return not reading.secret and not reading.problem and not demand.known(reading.sha256)


def _settle_copy(reading: FileReading, demand: ReadRequest, whole: bytes | None) -> None:
    """Keep the staged copy only if it is wanted; a small one is written only then."""
    if not demand.staged:
        return
    wanted = _is_wanted(reading, demand)
    if whole is None:
        reading.staged = wanted
        if not wanted:
            _unstage(demand)
    elif wanted:
        copy = create_file(demand.staged)
        try:
            reading.staged = not _write(copy, whole)
        finally:
            os.close(copy)
        if not reading.staged:
            _unstage(demand)


def _unstage(demand: ReadRequest) -> None:
    from rerail.durable import remove_file  # only where a copy could not be staged

    if demand.staged:
        with contextlib.suppress(OSError):
            remove_file(demand.staged)


class _Search:
    """Search for texts and secrets in a stream, wherever it is cut."""

    def __init__(self, demand: ReadRequest) -> None:
        checks = demand.checks
        self.secret = False
        self._mask = demand.mask if demand.staged or demand.checks is None else None
        self._wanted = {text.encode(): text for text in checks.contains} if checks else {}
        self._banned = {text.encode(): text for text in checks.not_contains} if checks else {}
        self._found: set[bytes] = set()
        longest = max((len(text) for text in (*self._wanted, *self._banned)), default=1)
        self._overlap = max(longest - 1, self._mask.longest * 3 if self._mask else 0)
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        if not (self._wanted or self._banned or self._mask):
            return
        data = self._tail + chunk
        self._found.update(text for text in (*self._wanted, *self._banned) if text not in self._found and text in data)
        if self._mask and not self.secret:
            self.secret = self._mask.data(data) != data
        self._tail = data[-self._overlap :] if self._overlap else b""

    def problem(self) -> str:
        for raw, text in self._wanted.items():
            if raw not in self._found:
                return f"does not contain {text!r}"
        for raw, text in self._banned.items():
            if raw in self._found:
                return f"contains {text!r}, which it must not"
        return ""


def _sized(size: int, checks: Artifact) -> str:
    least = checks.min_size
    if size == 0 and least is None:
        return "is empty (0 bytes; `min_size: 0` would allow that)"
    if least is not None and size < least:
        return f"has {size} bytes, fewer than min_size {least}"
    if checks.max_size is not None and size > checks.max_size:
        return f"has {size} bytes, more than max_size {checks.max_size}"
    return ""


def _parsed(fd: int, demand: ReadRequest, size: int) -> str:
    checks = demand.checks
    if checks is None or not (checks.format or checks.schema):
        return ""
    form = checks.format or _FORMS.get(os.path.splitext(checks.path)[1], "json")
    if size > MAX_PARSED:
        return f"is too large to be checked as {form} ({size} bytes, {MAX_PARSED} at most)"
    os.lseek(fd, 0, os.SEEK_SET)
    chunks = []
    while chunk := os.read(fd, copies.CHUNK):
        chunks.append(chunk)
    try:
        value = _PARSERS[form](b"".join(chunks))
    except Exception as error:  # noqa: BLE001 - parsers raise any exception on invalid files
        return f"is not valid {form}: {str(error).splitlines()[0][:200] if str(error) else type(error).__name__}"
    return _against(demand.schema, value) if demand.schema else ""


def _yaml(data: bytes) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(data, Loader=loader):  # the composer would follow any depth, and crash
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ValueError(f"nested deeper than {DEEPEST}")
        return yaml.load(data, Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _toml(data: bytes) -> Any:
    import tomllib

    return tomllib.loads(data.decode())


def _csv(data: bytes) -> Any:
    import csv
    import io

    width = 0
    reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
    try:
        for row in reader:
            if not row:
                continue
            width = width or len(row)
            if len(row) != width:
                raise ValueError(f"line {reader.line_num} has {len(row)} columns, the first {width}")
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None
    return None


_PARSERS: dict[str, Callable[[bytes], Any]] = {"json": msgspec.json.decode, "yaml": _yaml, "toml": _toml, "csv": _csv}


def _against(schema: str, value: Any) -> str:
    """Return why a value does not match a JSON Schema, or ''."""
    import jsonschema

    try:
        with open(schema, "rb") as file:
            wanted = msgspec.json.decode(file.read())
    except OSError as error:
        return f"cannot be checked: the schema {schema} cannot be read ({error.strerror})"
    except ValueError as error:
        return f"cannot be checked: the schema {schema} is not JSON ({error})"
    try:
        checker = jsonschema.validators.validator_for(wanted)
        checker.check_schema(wanted)
        misfit = jsonschema.exceptions.best_match(checker(wanted).iter_errors(value))
    except jsonschema.exceptions.SchemaError as broken:
        return f"cannot be checked: {schema} is no JSON Schema ({broken.message})"
    except Exception as broken:  # noqa: BLE001 - broken references, invalid patterns
        return f"cannot be checked against {schema}: {broken}"
    return f"does not fit {os.path.basename(schema)}: {misfit.json_path}: {misfit.message[:200]}" if misfit else ""
