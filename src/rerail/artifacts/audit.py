"""The audit: whether the artifacts of completed units are intact, byte for byte. Changes nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from rerail.artifacts.manifest import read_manifest
from rerail.artifacts.paths import PathNotAllowed, ProjectPaths, find, stamp_of, to_path, to_text
from rerail.artifacts.reading import ChangedWhileRead, ReadRequest, read
from rerail.artifacts.seal import (
    ArtifactInvalid,
    SealEnv,
    entries_of,
    examine,
    in_parallel,
    joint_stamp,
    other_stamps,
    tree_digest,
)
from rerail.core.audit import Audit, AuditEntry, Condition, Depth, Flaw
from rerail.core.events import ArtifactRecord, InputRecord
from rerail.core.expressions import placeholders
from rerail.core.model import Artifact, Pipeline, Step
from rerail.core.planner import step_at, step_index
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId
from rerail.errors import ArtifactUnreadable
from rerail.ports import ContentStore
from rerail.walker import is_pattern

CHUNK_BYTES = 1024 * 1024


class AuditFinding(msgspec.Struct, kw_only=True):
    """Condition of a path compared with its record."""

    condition: Condition | None = None
    detail: str = ""


class Auditor:
    """Audit in progress. Every file is read once, however many units claim it."""

    def __init__(
        self,
        place: ProjectPaths,
        content: ContentStore,
        depth: Depth = "full",
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._place = place
        self._content = content
        self._depth = depth
        self._progress = progress
        self._known: dict[str, str] = {}
        self._astray: dict[str, bool] = {}
        self._digests: dict[tuple[str, str], str] = {}  # full path and stamp → digest

    def audit(self, pipeline: Pipeline, state: RunState) -> Audit:
        """Audit all completed units; raise ArtifactUnreadable if a file cannot be read."""
        index = step_index(pipeline)
        flaws: dict[UnitId, tuple[Flaw, ...]] = {}
        intact: dict[UnitId, tuple[str, ...]] = {}
        inputs: dict[UnitId, tuple[InputRecord, ...]] = {}
        completed = [(unit, known) for unit, known in state.units.items() if known.status == "completed"]
        hooks = set(pipeline.hooks)
        mine = [
            (unit, known, step)
            for unit, known in completed
            if unit.step not in hooks and (step := step_at(index, unit)) is not None
        ]
        if self._depth == "full":
            plain = [
                record
                for _, known, step in mine
                for record in known.artifacts
                if record.kind == "file" and not ((one := declared_of(step, record)) and one.has_checks)
            ]
            self._read_ahead(plain)
        for unit, known, step in mine:
            found = [flaw for record in known.artifacts for flaw in self.flaws(step, record)]
            if found:
                flaws[unit] = tuple(found)
            broken = {flaw.artifact for flaw in found}
            intact[unit] = tuple(record.path for record in known.artifacts if record.path not in broken)
            if known.inputs:
                inputs[unit] = self._inputs(step, known)
        return Audit(flaws=self._contested(flaws, state), intact=intact, inputs=inputs)

    def _read_ahead(self, records: Sequence[ArtifactRecord]) -> None:
        """Take the digests of many files in parallel; an error here occurs again where it is reported."""

        def take(record: ArtifactRecord) -> None:
            with contextlib.suppress(OSError, ChangedWhileRead):
                full = self._full(record.path)
                reading = read(full, ReadRequest(progress=self._progress))
                self._digests[full, reading.stamp] = reading.sha256

        in_parallel(take, records, sum(record.size for record in records))

    def _inputs(self, step: Step, known: UnitState) -> tuple[InputRecord, ...]:
        """Return the present inputs; one that is no longer valid counts as changed."""
        trusted = known.inputs if self._depth == "fast" else ()
        now: list[InputRecord] = []
        for position, was in enumerate(known.inputs):
            path = to_path(was.path)
            external = position < len(step.inputs) and step.inputs[position].external
            lenient = Artifact(path=path, external=external, optional=True)
            try:
                means = SealEnv(place=self._place, progress=self._progress)
                now += examine([lenient], means, trusted)
            except ArtifactInvalid:
                now.append(InputRecord(path=was.path))
            except OSError as error:
                raise _unreadable(path, error) from error
        return tuple(now)

    def flaws(self, step: Step, record: ArtifactRecord) -> list[Flaw]:
        """Return the flaws of one recorded artifact."""
        declared = declared_of(step, record)
        temporary = declared is not None and declared.temporary
        entries: list[AuditEntry] | None = [
            AuditEntry(path=record.path, size=record.size, sha256=record.sha256, mode=record.internal.mode)
        ]
        if record.kind == "tree":
            entries = read_manifest(self._content, record.internal.manifest)
        if entries is None:
            return self._without_manifest(record, declared, temporary=temporary)
        top = "" if record.kind == "file" or is_pattern(record.path) else self._full(record.path)
        fast = self._depth == "fast" and declared is not None and not (top and os.path.islink(top))
        if fast and self._stamp(entries, record.kind) == record.internal.stamp:
            return []
        external = declared.external if declared else False

        def look(entry: AuditEntry) -> AuditFinding:
            if top and self._is_led_astray(self._full(entry.path), top):
                return AuditFinding(condition="missing", detail="a directory on the way is a link now")
            return self._look(entry, declared, external=external)

        seen = in_parallel(look, entries, record.size)
        return [
            Flaw(
                entry=entry,
                artifact=record.path,
                condition=what.condition,
                detail=what.detail,
                restorable=self._restorable(entry, what),
                temporary=temporary,
            )
            for entry, what in zip(entries, seen, strict=True)
            if what.condition is not None
        ]

    def _without_manifest(self, record: ArtifactRecord, declared: Artifact | None, *, temporary: bool) -> list[Flaw]:
        """Audit a tree whose manifest is lost: it is intact if the present files give the same digest."""
        spec = Artifact(path=to_path(record.path), external=declared is not None and declared.external)
        try:
            found = find(spec, self._place)
        except PathNotAllowed:
            found = None
        names = [name for name, _ in found.files] if found else []
        if found is not None:
            demand = ReadRequest(progress=self._progress)
            try:
                readings = in_parallel(lambda file: read(file[1], demand), found.files, found.size)
            except OSError as error:
                raise _unreadable(record.path, error) from error
            except ChangedWhileRead as error:
                raise _restless(error) from None
            if tree_digest(entries_of(found, readings)) == record.sha256:
                return []
            names += [entry.path for entry in found.others if entry.kind == "link"]
        detail = "its list of files is lost"
        return [
            Flaw(
                entry=AuditEntry(path=name),
                artifact=record.path,
                condition="unverifiable" if found else "missing",
                detail=detail,
                temporary=temporary,
            )
            for name in names or [record.path]
        ]

    def _stamp(self, entries: Sequence[AuditEntry], kind: str) -> str:
        try:
            stamps = [
                (entry.path, stamp_of(os.lstat(self._full(entry.path)))) for entry in entries if entry.kind == "file"
            ]
        except OSError:
            return "something is missing"
        if kind == "file":
            return stamps[0][1]
        if not all(self._stands(entry) for entry in entries if entry.kind != "file"):
            return "something is missing"
        return joint_stamp([*stamps, *other_stamps(entries)])

    def _is_led_astray(self, full: str, top: str) -> bool:
        """Return whether a directory of a tree, where there was a real one, is a link now."""
        directory = os.path.dirname(full)
        if directory not in self._astray:
            inside = [top] if directory.startswith(top) else []
            while directory.startswith(top + "/"):
                inside.append(directory)
                directory = os.path.dirname(directory)
            self._astray[os.path.dirname(full)] = any(os.path.islink(one) for one in inside)
        return self._astray[os.path.dirname(full)]

    def _full(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._place.work_dir, to_path(path)))

    def _stands(self, entry: AuditEntry) -> bool:
        return self._other(entry, self._full(entry.path)).condition is None

    def _look(self, entry: AuditEntry, declared: Artifact | None, *, external: bool) -> AuditFinding:
        try:
            full = self._place.full(to_path(entry.path), external=external, known=self._known)
        except PathNotAllowed as error:
            return AuditFinding(condition="wrong type", detail=str(error))
        if entry.kind != "file":
            return self._other(entry, full)
        try:
            status = os.lstat(full)
        except OSError as error:
            return _absent(full, error)
        if not stat.S_ISREG(status.st_mode):
            what = "a directory" if stat.S_ISDIR(status.st_mode) else "a link" if stat.S_ISLNK(status.st_mode) else "odd"
            return AuditFinding(condition="wrong type", detail=f"now {what}")
        if status.st_size == 0 and entry.size:
            return AuditFinding(condition="empty", detail=f"was {entry.size} bytes")
        if status.st_size < entry.size and self._is_prefix(full, entry):
            return AuditFinding(condition="truncated", detail=f"{status.st_size} of {entry.size} bytes")
        if status.st_size != entry.size:
            return AuditFinding(condition="changed", detail=f"{status.st_size} bytes, was {entry.size}")
        return self._by_content(entry, full, declared)

    def _is_prefix(self, full: str, entry: AuditEntry) -> bool:
        """Return whether a file is the beginning of the sealed one: certain only where there is a copy."""
        try:
            copy = self._content.open(entry.sha256)
        except (OSError, ValueError, KeyError):
            return False
        with os.fdopen(copy, "rb") as sealed, open(full, "rb") as file:
            while part := file.read(CHUNK_BYTES):
                if sealed.read(len(part)) != part:
                    return False
        return True

    def _by_content(self, entry: AuditEntry, full: str, declared: Artifact | None) -> AuditFinding:
        checks = declared if declared is not None and declared.has_checks else None
        schema = os.path.join(self._place.work_dir, checks.schema) if checks and checks.schema else ""
        try:
            key = (full, stamp_of(os.lstat(full)))
            if checks is None and key in self._digests:
                return AuditFinding() if self._digests[key] == entry.sha256 else _same_size(entry)
            reading = read(full, ReadRequest(checks=checks, schema=schema, progress=self._progress))
        except OSError as error:
            raise _unreadable(full, error) from error
        except ChangedWhileRead as error:
            raise _restless(error) from None
        self._digests[full, reading.stamp] = reading.sha256
        if reading.sha256 != entry.sha256:
            return _same_size(entry)
        return AuditFinding(condition="fails its checks", detail=reading.problem) if reading.problem else AuditFinding()

    def _other(self, entry: AuditEntry, full: str) -> AuditFinding:
        try:
            status = os.lstat(full)
        except OSError as error:
            return _absent(full, error)
        if entry.kind == "dir":
            return AuditFinding() if stat.S_ISDIR(status.st_mode) else AuditFinding(condition="wrong type")
        if not stat.S_ISLNK(status.st_mode):
            return AuditFinding(condition="wrong type", detail="no longer a link")
        return AuditFinding() if to_text(os.readlink(full)) == entry.target else AuditFinding(condition="changed")

    def _restorable(self, entry: AuditEntry, what: AuditFinding) -> bool:
        if what.condition is None or what.condition == "fails its checks":
            return False
        return entry.kind != "file" or not self._content.defect(entry.sha256)

    def _contested(self, flaws: dict[UnitId, tuple[Flaw, ...]], state: RunState) -> dict[UnitId, tuple[Flaw, ...]]:
        """Return the flaws with the steps that completed later and claim the same path."""
        paths = {flaw.path for found in flaws.values() for flaw in found}
        if not paths:
            return flaws
        claims: dict[str, list[tuple[int, str]]] = {}
        for unit, known in state.units.items():
            if known.status == "completed" and known.artifacts:
                for path in self._claimed(known.artifacts, paths):
                    claims.setdefault(path, []).append((known.completed_seq, unit.step))
        return {
            unit: tuple(_with_later(flaw, claims, state.units[unit].completed_seq) for flaw in found)
            for unit, found in flaws.items()
        }

    def _claimed(self, records: Iterable[ArtifactRecord], wanted: set[str]) -> set[str]:
        found: set[str] = set()
        for record in records:
            if record.kind == "file":
                found |= {record.path} & wanted
            elif not is_out_of_reach(record.path, wanted):
                found |= {entry.path for entry in read_manifest(self._content, record.internal.manifest) or ()} & wanted
        return found


def declared_of(step: Step, record: ArtifactRecord) -> Artifact | None:
    """Return the present declaration of a recorded artifact; None if the pipeline no longer has it."""
    path = to_path(record.path)
    for artifact in step.artifacts:
        if os.path.normpath(artifact.path) == path:
            return artifact
    there = step.artifacts[record.internal.position] if record.internal.position < len(step.artifacts) else None
    return there if there is not None and placeholders.has_placeholders(there.path) else None


def is_out_of_reach(pattern: str, paths: set[str]) -> bool:
    """Return whether a tree cannot hold any of these paths."""
    if is_pattern(pattern):
        return False
    return not any(path == pattern or path.startswith(pattern + "/") for path in paths)


def _with_later(flaw: Flaw, claims: Mapping[str, list[tuple[int, str]]], own: int) -> Flaw:
    later = tuple(step for seq, step in sorted(claims.get(flaw.path, ())) if seq > own)
    return msgspec.structs.replace(flaw, later=later) if later else flaw


def _same_size(entry: AuditEntry) -> AuditFinding:
    return AuditFinding(condition="changed", detail=f"{entry.size} bytes, as before")


def _absent(full: str, error: OSError) -> AuditFinding:
    """Return `missing` where there is no such name, or no directory on the way; raise ArtifactUnreadable otherwise."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return AuditFinding(condition="missing")
    raise _unreadable(full, error) from error


def _restless(error: ChangedWhileRead) -> ArtifactUnreadable:
    return ArtifactUnreadable(f"{error} Nothing was changed", hint="retry when the file is no longer being written")


def _unreadable(path: str, error: OSError) -> ArtifactUnreadable:
    return ArtifactUnreadable(
        f"cannot read {path}: {error.strerror}; nothing was changed", hint="make it readable, then run it again"
    )


def state_of(record: ArtifactRecord, work_dir: str, content: ContentStore) -> str:
    """Return intact, missing, empty, changed or wrong type; `unverified` if only reading it could tell."""
    full = os.path.join(work_dir, to_path(record.path))
    if record.kind == "tree":
        return _tree(record, work_dir, content)
    try:
        status = os.lstat(full)
    except OSError:
        return "missing"
    if not stat.S_ISREG(status.st_mode):
        return "wrong type"
    if stamp_of(status) == record.internal.stamp:
        return "intact"
    if status.st_size != record.size:
        return "changed" if status.st_size else "empty"
    return "unverified"


def _tree(record: ArtifactRecord, work_dir: str, content: ContentStore) -> str:
    full = os.path.join(work_dir, to_path(record.path))
    if not is_pattern(record.path) and not os.path.lexists(full):
        return "missing"
    entries = read_manifest(content, record.internal.manifest)
    if entries is None:
        return "unverifiable"
    try:
        stamps = [
            (entry.path, stamp_of(os.lstat(os.path.join(work_dir, to_path(entry.path)))))
            for entry in entries
            if entry.kind == "file"
        ]
    except OSError:
        return "changed"
    return "intact" if joint_stamp([*stamps, *other_stamps(entries)]) == record.internal.stamp else "unverified"
