"""Sealing: the artifacts of a step are made durable, digested, checked and copied.

All of it before the journal says that the step completed: data before claim.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from rerail.artifacts.manifest import manifest_bytes, write_manifest
from rerail.artifacts.paths import Match, PathNotAllowed, ProjectPaths, find, stamp_of, to_path, to_text
from rerail.artifacts.reading import Cancelled, ChangedWhileRead, FileReading, ReadRequest, read
from rerail.core.audit import AuditEntry
from rerail.core.events import ArtifactInternals, ArtifactRecord, InputRecord
from rerail.core.masking import Mask
from rerail.core.model import Artifact
from rerail.durable import copies
from rerail.ports import ContentStore
from rerail.text import size_text

DEFAULT_KEEP = 256 << 20  # bytes of a file up to which it is kept by default
WORKERS = min(8, (os.cpu_count() or 1) + 2)
LARGE = 1 << 18  # bytes of a file from which on threads help: below, they would wait for the interpreter

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class ArtifactInvalid(Exception):
    """Artifact or input of a step that is not as declared."""


class SealEnv(msgspec.Struct, kw_only=True):
    """Dependencies of sealing: paths, content store, staging directory, mask."""

    place: ProjectPaths
    content: ContentStore | None = None
    staging: str = ""  # a directory on the file system of the content store
    mask: Mask | None = None
    progress: Callable[[int], None] = lambda _: None


class SealResult(msgspec.Struct, kw_only=True):
    """Records of the sealed artifacts, and warnings for people."""

    records: tuple[ArtifactRecord, ...] = ()
    warnings: tuple[str, ...] = ()


_numbers = itertools.count(1)


def seal(declared: Sequence[Artifact], means: SealEnv) -> SealResult:
    """Seal the artifacts of a step; raise ArtifactInvalid with the first problem, OSError, Cancelled."""
    records: list[ArtifactRecord] = []
    warnings: list[str] = []
    for position, artifact in enumerate(declared):
        found = _present(artifact, means.place)
        if found is None:
            if not artifact.optional:
                raise ArtifactInvalid(f"artifact {artifact.path} is missing")
            continue
        _require_no_secret_names(artifact, found, means.mask)
        warnings += [f"{odd}, which is not part of the artifact" for odd in found.odd]
        record = _sealed(artifact, found, means, warnings)
        records.append(record.with_internal(position=position) if position else record)
    return SealResult(records=tuple(records), warnings=tuple(warnings))


_NEVER = "names are recorded, and secrets never are; give it another name"


def _require_no_secret_names(artifact: Artifact, found: Match, mask: Mask | None) -> None:
    """Reject an artifact whose names or link targets hold a secret; raise ArtifactInvalid.

    Names are in the journal and in manifests; masked, they would not tell what to restore.
    """
    if not mask:
        return
    names = [found.path, *(name for name, _ in found.files), *(entry.path for entry in found.others)]
    for name in names:
        if mask.holds(name) or mask.holds(to_path(name)):
            raise ArtifactInvalid(
                f"artifact {mask.text(artifact.path)}: the name {mask.text(name)} holds a secret; {_NEVER}"
            )
    for entry in found.others:
        if mask.holds(entry.target) or mask.holds(to_path(entry.target)):
            what = "where links lead is recorded, and secrets never are; leave it out of the artifact"
            raise ArtifactInvalid(f"artifact {artifact.path}: where the link {entry.path} leads holds a secret; {what}")


def _present(artifact: Artifact, place: ProjectPaths) -> Match | None:
    try:
        return find(artifact, place)
    except PathNotAllowed as error:
        raise ArtifactInvalid(f"artifact {error}") from None


def _sealed(artifact: Artifact, found: Match, means: SealEnv, warnings: list[str]) -> ArtifactRecord:
    if not found.files and not any(entry.kind == "link" for entry in found.others) and artifact.min_size != 0:
        raise ArtifactInvalid(f"artifact {artifact.path} is an empty directory")
    try:
        others = [os.path.join(means.place.work_dir, to_path(entry.path)) for entry in found.others]
        copies.sync_files([full for _, full in found.files], means.place.root, others)
        readings = _readings(artifact, found, means)
    except ChangedWhileRead as error:
        raise ArtifactInvalid(f"artifact {error}") from None
    for (name, _), (reading, _) in zip(found.files, readings, strict=True):
        if reading.problem:
            raise ArtifactInvalid(f"artifact {name} {reading.problem}")
    kept = _keep(artifact, found, readings, means, warnings)
    plain = [reading for reading, _ in readings]
    return _record(found, plain, means, kept=kept)


def _readings(artifact: Artifact, found: Match, means: SealEnv) -> list[tuple[FileReading, str]]:
    """Return every file's reading, and the path of its staged copy."""
    schema = os.path.join(means.place.work_dir, artifact.schema) if artifact.schema else ""
    content = means.content

    def one(file: tuple[str, str]) -> tuple[FileReading, str]:
        size = os.lstat(file[1]).st_size
        staged = ""
        if content is not None and is_to_be_kept(artifact, size) and content.has_room(size):
            staged = os.path.join(means.staging, f"{next(_numbers)}")
        demand = ReadRequest(
            checks=artifact,
            schema=schema,
            staged=staged,
            mask=means.mask,
            known=lambda sha256: content is not None and content.has(sha256) and not content.defect(sha256),
            progress=means.progress,
        )
        return read(file[1], demand), staged

    return in_parallel(one, found.files, found.size)


def is_to_be_kept(artifact: Artifact, size: int) -> bool:
    """Return whether a file of this artifact and size goes into the content store."""
    match artifact.keep:
        case bool():
            return artifact.keep
        case None:
            return size <= DEFAULT_KEEP
        case most:
            return size <= most


def _keep(
    artifact: Artifact, found: Match, readings: Sequence[tuple[FileReading, str]], means: SealEnv, warnings: list[str]
) -> bool:
    """Publish the staged copies; return whether all of the artifact is in the content store."""
    if means.content is None:
        return False
    try:
        means.content.publish((staged, reading.sha256) for reading, staged in readings if reading.staged)
    except OSError as error:
        warnings.append(f"no copy of {found.path} in the content store: {error.strerror}")
        return False
    secret = [name for (name, _), (reading, _) in zip(found.files, readings, strict=True) if reading.secret]
    if secret:
        warnings.append(f"{secret[0]} holds a secret, so the content store has no copy of it")
    kept = not secret and all(means.content.has(reading.sha256) for reading, _ in readings)
    if not kept and not secret and artifact.keep is not False:
        size = sum(reading.size for reading, _ in readings)
        fits = all(is_to_be_kept(artifact, reading.size) for reading, _ in readings)
        why = ", which is full (or the disk nearly is)" if fits else ""
        warnings.append(
            f"{found.path} ({size_text(size)}) has no copy in the content store{why}; if it is lost, the step reruns"
        )
    return kept


def _record(found: Match, readings: Sequence[FileReading], means: SealEnv, *, kept: bool) -> ArtifactRecord:
    if not found.tree:
        (reading,) = readings
        return ArtifactRecord(
            path=found.path,
            size=reading.size,
            sha256=reading.sha256,
            state="intact",
            internal=ArtifactInternals(mode=reading.mode, stamp=reading.stamp, kept=kept),
        )
    entries = entries_of(found, readings)
    manifest = ""
    if means.content is not None:
        staged = os.path.join(means.staging, f"{next(_numbers)}")
        manifest = write_manifest(entries, means.content, staged)
    stamp = tree_stamp(found, [reading.stamp for reading in readings])
    return ArtifactRecord(
        path=found.path,
        kind="tree",
        files=len(found.files),
        size=sum(reading.size for reading in readings),
        sha256=tree_digest(entries),
        state="intact",
        internal=ArtifactInternals(manifest=manifest, stamp=stamp, kept=kept),
    )


def entries_of(found: Match, readings: Sequence[FileReading]) -> list[AuditEntry]:
    """Return the entries of a tree, its links and empty directories included."""
    read_ = [
        AuditEntry(path=name, size=reading.size, sha256=reading.sha256, mode=reading.mode)
        for (name, _), reading in zip(found.files, readings, strict=True)
    ]
    return [*read_, *found.others]


def tree_digest(entries: Sequence[AuditEntry]) -> str:
    """Return the digest of a tree: over names, contents and executable bits, not over other permissions."""
    same = [
        msgspec.structs.replace(entry, mode=0o755 if entry.kind == "file" and entry.mode & 0o100 else 0)
        for entry in entries
        if entry.kind != "dir" or entry.empty
    ]
    return hashlib.sha256(manifest_bytes(same)).hexdigest()


def tree_stamp(found: Match, stamps: Sequence[str]) -> str:
    """Return one stamp for all files that were found of a tree."""
    pairs = [(name, stamp) for (name, _), stamp in zip(found.files, stamps, strict=True)]
    return joint_stamp([*pairs, *other_stamps(found.others)])


def other_stamps(entries: Iterable[AuditEntry]) -> list[tuple[str, str]]:
    """Return the stamps of links and empty directories."""
    return [(entry.path, entry.kind + entry.target) for entry in entries if entry.kind == "link" or entry.empty]


def joint_stamp(stamps: Iterable[tuple[str, str]]) -> str:
    """Return one stamp for many (name, stamp) pairs."""
    return hashlib.sha256("\n".join(f"{stamp} {name}" for name, stamp in sorted(stamps)).encode()).hexdigest()[:32]


def examine(declared: Sequence[Artifact], means: SealEnv, known: Sequence[InputRecord] = ()) -> tuple[InputRecord, ...]:
    """Return the digests of the inputs of a step; raise ArtifactInvalid if one is missing or not as declared.

    A file with the same stamp as in `known` is not read again.
    """
    before = {record.path: record for record in known}
    return tuple(_examined(artifact, means, before) for artifact in declared)


def _examined(artifact: Artifact, means: SealEnv, known: dict[str, InputRecord]) -> InputRecord:
    if means.mask and means.mask.holds(artifact.path):
        raise ArtifactInvalid(f"input {means.mask.text(artifact.path)}: its name holds a secret; {_NEVER}")
    try:
        found = find(artifact, means.place)
    except PathNotAllowed as error:
        raise ArtifactInvalid(f"input {error}") from None
    if found is None:
        if not artifact.optional:
            raise ArtifactInvalid(f"input {artifact.path} is missing")
        return InputRecord(path=to_text(os.path.normpath(artifact.path)))
    stamps = [stamp_of(os.lstat(full)) for _, full in found.files]
    stamp = tree_stamp(found, stamps) if found.tree else stamps[0]
    if found.path in known and known[found.path].stamp == stamp and known[found.path].sha256:
        return known[found.path]
    schema = os.path.join(means.place.work_dir, artifact.schema) if artifact.schema else ""
    # An input may be empty, unless its declaration says otherwise.
    checks = artifact if artifact.min_size is not None else msgspec.structs.replace(artifact, min_size=0)
    demand = ReadRequest(checks=checks, schema=schema, progress=means.progress)
    try:
        readings = in_parallel(lambda file: read(file[1], demand), found.files, found.size)
    except ChangedWhileRead as error:
        raise ArtifactInvalid(f"input {error}") from None
    for (name, _), reading in zip(found.files, readings, strict=True):
        if reading.problem:
            raise ArtifactInvalid(f"input {name} {reading.problem}")
    sha256 = "" if found.tree else readings[0].sha256
    if found.tree:
        sha256 = tree_digest(entries_of(found, readings))
        stamp = tree_stamp(found, [reading.stamp for reading in readings])
    return InputRecord(path=found.path, sha256=sha256, stamp=stamp)


def in_parallel(work: Callable[[_Task], _Result], tasks: Sequence[_Task], size: int) -> list[_Result]:
    """Return the results in order; use threads if `size`, the bytes of all tasks, means that the files are large."""
    if len(tasks) < 2 or size // len(tasks) < LARGE:
        return [work(task) for task in tasks]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(WORKERS, len(tasks))) as pool:
        return list(pool.map(work, tasks))


__all__ = ["ArtifactInvalid", "Cancelled", "SealEnv", "SealResult", "examine", "in_parallel", "seal"]
