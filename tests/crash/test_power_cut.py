"""Every sync is there for a reason, and no claim about an artifact survives a power cut that its data does not survive."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rerail import api
from rerail.artifacts.manifest import read_manifest
from rerail.core.events import ArtifactRecord
from rerail.core.model import Artifact, Call, Pipeline, RunOptions, Step
from rerail.errors import RerailError
from rerail.stores.content_store import DirectoryContentStore
from rerail.stores.directory import DirectoryStore
from tests.crash.figures import figure
from tests.crash.figures import states as explored
from tests.crash.reference import SMALL, TEXT, World, judge_by_reading, live
from tests.crash.test_explorer import fresh, undisturbed
from tests.lab.explorer import Explorer
from tests.lab.faults import FaultFS, Op, crash_at
from tests.sweeps import Sample

pytestmark = pytest.mark.usefixtures("standing_still")

ALWAYS, NEVER = 1e9, 0.0  # how much of the time snapshots may take
SETTING_UP = 26  # operations before the first step: each is another one; what follows are steps, one like the other

# What is only a cache, or tidiness, may be lost in a power cut: the journal makes up for it.
CACHE_ONLY = {
    "rerail.stores.directory.DirectoryStore._prepare": ".gitignore is for git, not for us",
    "rerail.stores.writer.DirectoryRunWriter.save_snapshot": "checkpoint.json is a cache of the journal",
    "rerail.stores.writer.DirectoryRunWriter.settle_past": "history/ and logs/ are recreated",
}
NEEDED_THERE = "rerail.stores.writer.DirectoryRunWriter.settle_past"  # has syncs of both kinds


def histories(memory: Path) -> list[Sequence[Op]]:
    """A run nobody disturbed, and many that were killed once and resumed; all in the same place."""
    found = [undisturbed(fresh(memory), SMALL)]
    last = len(found[0])
    for number in (*range(1, SETTING_UP), *range(SETTING_UP, last, 4)):
        root = fresh(memory)
        with crash_at(number) as fs:
            live(root, SMALL, World(fs))
        if fs.crashed:
            with FaultFS() as second:
                live(root, SMALL, World(second, life=2))
            found.append([*fs.ops, *second.ops])
    return found


def is_missed(memory: Path, lives: Sequence[Sequence[Op]], site: str) -> bool:
    """Whether anything is lost if this place in the code does not sync."""
    explorer = Explorer(memory / "after", judge_by_reading, most_violations=1)
    for ops in lives:
        if any(op.site == site for op in ops):
            without = [op for op in ops if op.site != site]
            explorer.explore(memory / "disk", without, since=next(i for i, op in enumerate(ops) if op.site == site))
            if explorer.violations:
                return True
    return False


@pytest.mark.scenario("B4", "B5", "B9", "D4")
def test_every_sync_is_needed_or_named_as_cache_only(
    memory: Path, monkeypatch: pytest.MonkeyPatch, sample: Sample
) -> None:
    lives = []
    for share in (ALWAYS, NEVER):
        monkeypatch.setattr("rerail.engine.recorder.SNAPSHOT_SHARE", share)
        lives += histories(memory)
    sites = {op.site for ops in lives for op in ops if op.kind == "sync"}
    sites = set(sample.of(sorted(sites), 3))
    unexplained = [
        site for site in sorted(sites) if site.rsplit(":", 1)[0] not in CACHE_ONLY and not is_missed(memory, lives, site)
    ]
    there = [site for site in sites if site.startswith(NEEDED_THERE)]
    needed_there = [site for site in sorted(there) if is_missed(memory, lives, site)]

    assert not unexplained, f"no test would notice if these syncs were gone: {unexplained}"
    assert len(needed_there) >= 2 or not sample.whole, "what was read must be on the disk before anything is built on it"
    explained = [site for site in sites if site.rsplit(":", 1)[0] in CACHE_ONLY and site not in needed_there]
    figure("T6", "places where a missing sync loses something", len(sites) - len(explained))
    figure("T6", "that are named as cache only", len(explained))


@pytest.mark.scenario("B4", "B12")
def test_a_power_cut_leaves_no_claim_without_data(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the journal says was produced is there, byte for byte, and so is the copy it says was kept."""
    root = fresh(memory)
    monkeypatch.setattr("rerail.durable.copies.clone", lambda *_: False)
    ops = sealed(root)

    assert [op.path for op in ops if op.path.startswith("done ")] == ["done None one", "done None tree", "done None two"]
    explorer = Explorer(memory / "after", judge_claims)
    explorer.explore(root, ops)
    assert not explorer.violations, "\n".join(map(str, explorer.violations))
    explored("states with artifacts after a power cut", explorer.seen)
    syncs = {op.site for op in ops if op.kind == "sync" and ("artifacts" in op.site or "content_store" in op.site)}
    assert len(syncs) >= 2
    for site in syncs:  # break it on purpose: without any one of them a claim is made that does not hold
        broken = Explorer(memory / "after", judge_claims, most_violations=1)
        broken.explore(root, [op for op in ops if op.site != site])
        assert broken.violations, site


def sealed(root: Path) -> Sequence[Op]:
    """A run whose steps leave files behind, written by programs that never sync."""
    steps = tuple(
        Step(id=name, action=Call(target=name), needs=needs, artifacts=(Artifact(path=path),))
        for name, needs, path in (("one", (), "one.txt"), ("tree", ("one",), "tree"), ("two", ("tree",), "two.txt"))
    )
    with FaultFS() as fs:

        def program(*paths: str) -> Callable[[], dict[str, Any]]:
            def run() -> dict[str, Any]:
                for path in paths:
                    if not (root / path).parent.exists():
                        fs.mkdir(str((root / path).parent))
                    fd = fs.open(str(root / path), os.O_WRONLY | os.O_CREAT)
                    fs.pwrite(fd, f"content of {path}".encode() * 9, 0)
                    fs.close(fd)
                return {}

            return run

        functions = {"one": program("one.txt"), "tree": program("tree/a", "tree/b"), "two": program("two.txt")}
        request = api.StartRequest(pipeline_path=str(root / "p.yaml"), run_id="r", options=RunOptions(parallel=1))
        store = DirectoryStore(str(root / "state"))
        api.start_pipeline(store, Pipeline(name="p", steps=steps), TEXT, request, [World(fs)], functions=functions)
    return fs.ops


def judge_claims(place: str, notes: Sequence[str]) -> str:
    try:
        units = DirectoryStore(os.path.join(place, "state")).read("r").state.units
    except RerailError:
        units = {}
    completed = {step for (step, _), unit in units.items() if unit.status == "completed"}
    for note in notes:
        if note.startswith("done ") and note.split(" ", 2)[2] not in completed:
            return f"forgotten: {note}"
    return "; ".join(
        f"{step}: {bad}"
        for (step, _), unit in units.items()
        if unit.status == "completed"
        for bad in _broken(Path(place), unit.artifacts)
    )


def _broken(place: Path, records: Sequence[ArtifactRecord]) -> list[str]:
    objects = DirectoryContentStore(str(place / "state" / "objects"))
    bad = []
    for record in records:
        entries = [record] if record.kind == "file" else read_manifest(objects, record.internal.manifest)
        for entry in [entry for entry in entries or () if entry.kind == "file"] or [record]:
            path = place / entry.path
            if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != entry.sha256:
                bad.append(f"{entry.path} is not what the journal says")
            if record.internal.kept and objects.defect(entry.sha256):
                bad.append(f"no copy of {entry.path}")
    return bad
