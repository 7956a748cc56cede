"""Paths of artifacts: where they may be, their names in records, and the files that match a declared path."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence

import msgspec

from rerail import walker
from rerail.core.audit import AuditEntry
from rerail.core.model import Artifact
from rerail.walker import is_pattern

USUAL_DIR = 0o755


class PathNotAllowed(Exception):
    """Path at which no artifact may be, or whose content cannot be one."""


class ProjectPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Directory that paths are relative to, project they must stay in, and state directory, which is no artifact."""

    work_dir: str
    root: str
    state: str = ""

    def full(self, path: str, *, external: bool = False, known: dict[str, str] | None = None) -> str:
        """Return the absolute path; raise PathNotAllowed if it leads out of the project, also by a link.

        `known` are directories whose real paths were found a moment ago.
        """
        whole = os.path.normpath(os.path.join(self.work_dir, path))
        directory = os.path.dirname(whole)
        if known is not None and directory in known:
            return whole
        real = self.real(path, external=external)
        if known is not None:
            known[directory] = os.path.dirname(real)
        return whole

    def real(self, path: str, *, external: bool = False) -> str:
        """Return the absolute path without links on the way; raise PathNotAllowed if it leads out of the project."""
        directory, name = os.path.split(os.path.normpath(os.path.join(self.work_dir, path)))
        real = os.path.join(os.path.realpath(directory), name)
        if self.state and _inside(real, os.path.realpath(self.state)):
            raise PathNotAllowed(f"{path} is in rerail's own directory")
        if not external and not _inside(real, os.path.realpath(self.root)):
            raise PathNotAllowed(f"{path} is outside the project ({self.root}); `external: true` would allow that")
        return real

    def name(self, full: str) -> str:
        """Return the name of a full path in records."""
        work_dir = os.path.abspath(self.work_dir)
        root = os.path.abspath(self.root)
        return to_text(os.path.relpath(full, work_dir) if _inside(full, root) or _inside(full, work_dir) else full)


def place_of(work_dir: str, base_dir: str, state: str) -> ProjectPaths:
    """Return the paths of a run: the project is the parent of the state directory, if the pipeline is in there too."""
    work = os.path.abspath(work_dir)
    base = os.path.abspath(base_dir) if base_dir else work
    return ProjectPaths(work_dir=work, root=base if _inside(work, base) else work, state=state)


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def to_text(path: str) -> str:
    r"""Encode a path of any bytes as text that JSON can hold: those that are not UTF-8 as \xNN."""
    raw = os.fsencode(path)
    return raw.replace(b"\\", b"\\\\").decode("utf-8", errors="backslashreplace")


def to_path(text: str) -> str:
    """Decode a path that `to_text` encoded."""
    if "\\" not in text:
        return text
    out = bytearray()
    raw = text.encode()
    at = 0
    while at < len(raw):
        if raw[at : at + 2] == b"\\\\":
            out += b"\\"
            at += 2
        elif raw[at : at + 2] == b"\\x":
            out.append(int(raw[at + 2 : at + 4], 16))
            at += 4
        else:
            out.append(raw[at])
            at += 1
    return os.fsdecode(bytes(out))


class Match(msgspec.Struct, kw_only=True):
    """Files at a declared path: one file, or a tree of entries; `odd` are those that cannot be artifacts."""

    path: str  # as records call it
    tree: bool
    files: list[tuple[str, str]]  # name and full path
    size: int = 0  # of all files
    others: list[AuditEntry] = []  # links and directories of a tree
    odd: list[str] = []


def find(declared: Artifact, place: ProjectPaths) -> Match | None:
    """Return the files at a declared path, None if there are none; raise PathNotAllowed."""
    if is_pattern(declared.path):
        return _matches(declared, place)
    full = place.full(declared.path, external=declared.external)
    name = place.name(full)
    try:
        mode = os.lstat(full).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(mode):
        return Match(path=name, tree=False, files=[(name, full)])
    if stat.S_ISDIR(mode):
        found = Match(path=name, tree=True, files=[], others=[], odd=[])
        _walk([full], place, found)
        return found
    if stat.S_ISLNK(mode):
        raise PathNotAllowed(f"{declared.path} is a symbolic link to {os.readlink(full)}; declare what it points to")
    raise PathNotAllowed(f"{declared.path} is {_kind(mode)}")


def _matches(declared: Artifact, place: ProjectPaths) -> Match | None:
    beginning = re.split(r"[*?\[]", declared.path, maxsplit=1)[0]
    place.full(beginning + "x", external=declared.external)  # rejected before anything outside is even read
    state = os.path.realpath(place.state) if place.state else ""
    parts = [part for part in declared.path.split("/") if part not in ("", ".")]
    pattern = "/" * os.path.isabs(declared.path) + "/".join(parts)
    try:
        matching = [os.path.join(place.work_dir, one) for one in walker.matching(place.work_dir, pattern)]
    except walker.TooManyEntries as error:
        raise PathNotAllowed(str(error)) from None
    matched = sorted(one for one in matching if not (state and _inside(os.path.realpath(one), state)))
    known: dict[str, str] = {}
    for one in matched:
        place.full(one, external=declared.external, known=known)
    if not matched:
        return None
    found = Match(path=to_text(os.path.normpath(declared.path)), tree=True, files=[], others=[], odd=[])
    _walk(matched, place, found)
    return found


def _walk(roots: Sequence[str], place: ProjectPaths, found: Match) -> None:
    """Collect all entries at and below some paths, without following links, in the order of their names."""
    stack = [(os.path.normpath(root), "") for root in reversed(roots)]
    seen: set[str] = set()
    while stack:
        full, name = stack.pop()
        if full in seen:
            continue
        seen.add(full)
        name = name or place.name(full)
        status = os.lstat(full)
        if stat.S_ISREG(status.st_mode):
            found.files.append((name, full))
            found.size += status.st_size
        elif stat.S_ISDIR(status.st_mode):
            if place.state and _inside(os.path.realpath(full), os.path.realpath(place.state)):
                continue
            inside = sorted(os.listdir(full))
            stack += [(f"{full}/{one}", f"{name}/{to_text(one)}") for one in reversed(inside)]
            mode = stat.S_IMODE(status.st_mode)
            if not inside or mode != USUAL_DIR:
                found.others.append(AuditEntry(path=name, kind="dir", mode=mode, empty=not inside))
        elif stat.S_ISLNK(status.st_mode):
            found.others.append(AuditEntry(path=name, kind="link", target=to_text(os.readlink(full))))
        else:
            found.odd.append(f"{name} is {_kind(status.st_mode)}")


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISSOCK, "a socket"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISDIR, "a directory"))
    return next((name for test, name in kinds if test(mode)), "a device")


def stamp_of(status: os.stat_result) -> str:
    """Return a value that changes when a file does, without reading it."""
    return f"{status.st_size}.{status.st_mtime_ns}.{status.st_ctime_ns}.{status.st_ino}"
