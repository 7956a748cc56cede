"""`rerail doctor`: whether runs survive here: the store, its file system, the speed of its syncs, the tools."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Literal

import click
import msgspec

from rerail import durable
from rerail.app.runs import summaries
from rerail.cli.options import json_option, open_store, store_option
from rerail.cli.render.streams import print_json
from rerail.cli.render.table import table
from rerail.cli.render.terminal import out_look
from rerail.errors import StateError
from rerail.ports import Store
from rerail.text import size_text as size
from rerail.version import VERSION

SLOW_SYNC = 0.05  # seconds
LITTLE_SPACE = 100_000_000

_FORGETFUL = ("tmpfs", "ramfs", "devtmpfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs")


class Diagnosis(msgspec.Struct, frozen=True):
    """Result of one check."""

    verdict: Literal["ok", "warning", "bad"]
    what: str
    found: str


@click.command(epilog="Example: rerail doctor")
@json_option("An array of the checks and their results.")
@store_option()
def doctor(as_json: bool, store_url: str | None) -> int:
    """Check the store, its file system, its locks and the tools, and report problems."""
    store = open_store(store_url)
    findings = [*_store(store, store_url), *(_disk(store.root) if store.root else ()), *_runs(store), *_tools()]
    if as_json:
        print_json(findings)
    else:
        look = out_look()
        marks = {
            "ok": (look.symbol("completed"), "green"),
            "warning": ("!", "yellow"),
            "bad": (look.symbol("failed"), "red"),
        }
        rows = [(marks[finding.verdict], (finding.what, ""), (finding.found, "")) for finding in findings]
        sys.stdout.write("".join(line + "\n" for line in table(rows, look)))
    return StateError.exit_code if any(finding.verdict == "bad" for finding in findings) else 0


def _store(store: Store, url: str | None) -> list[Diagnosis]:
    why = "the nearest .rerail at or above this directory"
    if url:
        why = "from --store"
    elif os.environ.get("RERAIL_STORE"):
        why = "from RERAIL_STORE"
    elif store.root and not os.path.isdir(store.root):
        why = "none yet; the first run creates it"
    return [Diagnosis("ok", "store", f"{store.url} ({why})")]


def _disk(place: str) -> list[Diagnosis]:
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    kind = _file_system(place)
    findings = [Diagnosis("ok", "file system", kind or "unknown")]
    if kind in _FORGETFUL:
        findings = [Diagnosis("warning", "file system", f"{kind}: in memory, lost at the next power cut")]
    elif kind == "overlay":
        findings = [Diagnosis("warning", "file system", "overlay: lost with its container; mount a volume")]
    elif kind in _REMOTE:
        findings = [Diagnosis("warning", "file system", f"{kind}: remote; its locks and syncs depend on its server")]
    free = shutil.disk_usage(place).free
    findings.append(Diagnosis("warning" if free < LITTLE_SPACE else "ok", "free space", size(free)))
    return [*findings, _sync(place), _lock(place)]


def _file_system(path: str) -> str:
    """Return the type of the mount that holds a path, by the longest mount point above it."""
    best, kind = "", ""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                fields = line.split(" ")
                point = fields[1].replace("\\040", " ")
                inside = os.path.realpath(path) == point or os.path.realpath(path).startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, fields[2]
    except OSError:
        return ""
    return kind


def _sync(place: str) -> Diagnosis:
    times = []
    try:
        with tempfile.TemporaryDirectory(prefix=".rerail-doctor-", dir=place) as scratch:
            file = durable.AppendFile(os.path.join(scratch, "journal"), b"")
            for _ in range(20):
                began = time.perf_counter()
                file.append(b"x" * 360)
                file.sync()
                times.append(time.perf_counter() - began)
            file.close()
    except OSError as error:
        return Diagnosis("bad", "sync", f"{place} cannot be written: {error.strerror}")
    middle = statistics.median(times)
    verdict: Literal["ok", "warning"] = "warning" if middle > SLOW_SYNC else "ok"
    return Diagnosis(verdict, "sync", f"{middle * 1e3:.2f} ms per record; every step waits for one")


def _lock(place: str) -> Diagnosis:
    try:
        with tempfile.TemporaryDirectory(prefix=".rerail-doctor-", dir=place) as scratch:
            held = durable.Lock(os.path.join(scratch, "lock"))
            try:
                durable.Lock(os.path.join(scratch, "lock")).release()
            except BlockingIOError:
                return Diagnosis("ok", "locks", "one owner at a time")
            finally:
                held.release()
    except OSError as error:
        return Diagnosis("bad", "locks", f"none: {error.strerror}")
    return Diagnosis("bad", "locks", "locks do not work here, two owners are possible: use another --store")


def _runs(store: Store) -> list[Diagnosis]:
    rows = summaries(store)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "none"
    findings = [Diagnosis("warning" if counts.get("damaged") else "ok", "runs", told)]
    if rows:
        findings.append(Diagnosis("ok", "state", f"{size(store.size())} in {len(rows)} runs"))
    return findings


def _tools() -> list[Diagnosis]:
    python = f"{platform.python_version()} ({sys.executable})"
    findings = [Diagnosis("ok", "rerail", VERSION), Diagnosis("ok", "python", python)]
    bash = shutil.which("bash")
    findings.append(
        Diagnosis("ok", "shell", bash) if bash else Diagnosis("warning", "shell", "no bash; `run` steps get sh -e")
    )
    git = shutil.which("git")
    version = ""
    if git:
        version = subprocess.run([git, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    missing = Diagnosis("warning", "git", "none; `commit_required` cannot work")
    return [*findings, Diagnosis("ok", "git", version) if git else missing]
