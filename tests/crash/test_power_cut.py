"""A power cut after any operation loses nothing that was acknowledged, and every sync is there for a reason."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rerail import api
from rerail.artifacts.objects import Objects
from rerail.core.events import ArtifactRecord, Event, StepCompleted
from rerail.core.model import Artifact, Call, Pipeline, RunOptions, Step
from rerail.core.state import RunState
from rerail.errors import RerailError, RunNotFound
from rerail.stores.directory import DirectoryStore
from tests.crash.power import Disk, Op, RecordingOS, recorded

STEPS = tuple(
    Step(id=name, action=Call(target="f"), needs=needs) for name, needs in (("a", ()), ("b", ("a",)), ("c", ("b",)))
)
PIPELINE = Pipeline(name="p", steps=STEPS)
TEXT = b"what the run was started from"
ALWAYS, NEVER = 1e9, 0.0  # how much of the time snapshots may take
FUNCTIONS = {"f": lambda: {"n": 1}}

# What is only a cache, or tidiness, may be lost in a power cut: the journal makes up for it.
CACHE_ONLY = {
    "rerail.stores.directory.DirectoryStore._prepare": ".gitignore is for git, not for us",
    "rerail.stores.runlog.DirectoryRun.save_snapshot": "checkpoint.json is a cache of the journal",
    "rerail.stores.runlog.DirectoryRun.settle_past.make_dir": "history/ and logs/ are recreated",
}


class Acknowledge:
    """A reporter that writes down what the world was told, in the order of everything else."""

    def __init__(self, recorder: RecordingOS) -> None:
        self._recorder = recorder

    def show(self, seq: int, event: Event, state: RunState) -> None:
        if isinstance(event, StepCompleted):
            self._recorder.acknowledge(event.step)

    def warn(self, message: str) -> None:
        pass


def life(root: Path, crash_at_sync: int = 0) -> RecordingOS:
    """Start the run, or go on with it; if asked to, die at the n-th sync."""

    def work(recorder: RecordingOS) -> None:
        request = api.StartRequest(pipeline_path=str(root / "p.yaml"), run_id="r", options=RunOptions(parallel=1))
        store = DirectoryStore(str(root / "state"))
        if store.runs():
            api.resume(store, "r", [Acknowledge(recorder)], api.ResumeRequest(pipeline=PIPELINE), functions=FUNCTIONS)
        else:
            api.start_pipeline(store, PIPELINE, TEXT, request, [Acknowledge(recorder)], functions=FUNCTIONS)

    return recorded(root, work, crash_at_sync)


def cuts(root: Path, ops: Sequence[Op]) -> Iterator[tuple[int, bool, set[str], dict[str, Any]]]:
    """After every operation, in both models: what had been acknowledged, and what survives."""
    for names_first in (False, True):
        disk = Disk(str(root), names_first=names_first)
        acked: set[str] = set()
        seen: set[int] = set()
        for number, op in enumerate(ops):
            if op.kind == "ack":
                acked.add(op.path)
            else:
                disk.apply(op)
            survivors = dict(disk.survivors())
            identity = hash((frozenset(survivors.items()), frozenset(acked)))
            if identity not in seen:
                seen.add(identity)
                yield number, names_first, set(acked), survivors


def violations(tmp_path: Path, root: Path, ops: Sequence[Op]) -> list[str]:
    """Real recovery on every state a cut can leave; what was acknowledged and is gone."""
    found = []
    place = tmp_path / "after"
    for number, names_first, acked, survivors in cuts(root, ops):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name, content in sorted(survivors.items()):
            target = place / name
            if content is None:
                target.mkdir(exist_ok=True)
            else:
                target.write_bytes(content)
        store = DirectoryStore(str(place / "state"))
        try:
            state = store.read("r").state
            assert store.created_at("r"), "run.json is not whole"
            assert store.pipeline("r", "") == TEXT, "pipeline.yaml is not whole"
            lost = [step for step in acked if state.unit((step, None)).status != "completed"]
        except RunNotFound:
            lost = sorted(acked)
        except (RerailError, AssertionError) as error:
            lost = [f"unreadable: {error}"]
        if lost:
            found.append(f"after operation {number} (names first: {names_first}): {lost}")
    return found


def test_a_power_cut_after_any_operation_loses_nothing_acknowledged(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    ops = life(root).ops

    assert sum(op.kind == "ack" for op in ops) == 3
    assert violations(tmp_path, root, ops) == []


def test_killed_at_any_sync_then_resumed_then_power_cut(tmp_path: Path) -> None:
    """Records that only the page cache held when their writer died must not be built on before they are synced."""
    total = life(_fresh(tmp_path)).syncs
    assert total >= 10
    for crash_at in range(1, total + 1):
        root = _fresh(tmp_path)
        ops = [*life(root, crash_at).ops, *life(root).ops]
        assert violations(tmp_path, root, ops) == [], f"killed at sync {crash_at}"


def test_every_sync_is_needed_or_named_as_cache_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    histories = []
    for share in (ALWAYS, NEVER):
        monkeypatch.setattr("rerail.engine.recorder.SNAPSHOT_SHARE", share)
        for crash_at in range(life(_fresh(tmp_path)).syncs + 1):
            root = tmp_path / f"disk-{share}-{crash_at}"
            root.mkdir()
            histories.append((root, [*life(root, crash_at).ops, *(life(root).ops if crash_at else [])]))
    sites = {op.site for _, ops in histories for op in ops if op.kind == "sync"}
    needed = set()
    for site in sorted(sites):
        for root, ops in histories:
            if any(op.site == site for op in ops):
                without = [op for op in ops if not (op.kind == "sync" and op.site == site)]
                if violations(tmp_path, root, without):
                    needed.add(site)
                    break
    unexplained = {site for site in sites - needed if site.rsplit(":", 1)[0] not in CACHE_ONLY}
    assert not unexplained, f"no test would notice if these syncs were gone: {unexplained}"
    assert len(needed) >= 4


def test_a_power_cut_after_any_operation_leaves_no_claim_without_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the journal says was produced is there, byte for byte, and so is the copy it says was kept."""
    root = _fresh(tmp_path)
    made = tuple(
        Step(id=name, action=Call(target=name), needs=needs, artifacts=(Artifact(path=path),))
        for name, needs, path in (("one", (), "one.txt"), ("tree", ("one",), "tree"), ("two", ("tree",), "two.txt"))
    )
    monkeypatch.setattr("rerail.durable.files.clone", lambda *_: False)

    def work(recorder: RecordingOS) -> None:
        def program(*paths: str) -> Callable[[], dict[str, Any]]:
            """A program that writes files and never syncs them."""

            def run() -> dict[str, Any]:
                for path in paths:
                    if not (root / path).parent.exists():
                        recorder.mkdir(str((root / path).parent))
                    fd = recorder.open(str(root / path), os.O_WRONLY | os.O_CREAT)
                    recorder.pwrite(fd, f"content of {path}".encode() * 9, 0)
                    os.close(fd)
                return {}

            return run

        functions = {"one": program("one.txt"), "tree": program("tree/a", "tree/b"), "two": program("two.txt")}
        request = api.StartRequest(pipeline_path=str(root / "p.yaml"), run_id="r", options=RunOptions(parallel=1))
        store = DirectoryStore(str(root / "state"))
        reporters = [Acknowledge(recorder)]
        api.start_pipeline(store, Pipeline(name="p", steps=made), TEXT, request, reporters, functions=functions)

    ops = recorded(root, work).ops

    assert [op.path for op in ops if op.kind == "ack"] == ["one", "tree", "two"]
    assert _claims_without_data(tmp_path, root, ops) == []
    syncs = {op.site for op in ops if op.kind == "sync" and ("artifacts" in op.site)}
    assert len(syncs) >= 2
    for site in syncs:  # break it on purpose: without any one of them a claim is made that does not hold
        assert _claims_without_data(tmp_path, root, [op for op in ops if op.site != site]), site


def _claims_without_data(tmp_path: Path, root: Path, ops: Sequence[Op]) -> list[str]:
    found = []
    for number, names_first, acked, survivors in cuts(root, ops):
        shutil.rmtree(tmp_path / "after", ignore_errors=True)
        place = tmp_path / "after"
        place.mkdir()
        for name, content in sorted(survivors.items()):
            target = place / name
            target.mkdir(exist_ok=True) if content is None else target.write_bytes(content)
        try:
            units = DirectoryStore(str(place / "state")).read("r").state.units
        except RerailError:
            units = {}
        missing = acked - {step for (step, _), unit in units.items() if unit.status == "completed"}
        found += [f"{number}: {step} is forgotten" for step in missing]
        for (step, _), unit in units.items():
            if unit.status == "completed":
                found += [f"{number} ({names_first}): {step}: {bad}" for bad in _broken(place, unit.artifacts)]
    return found


def _broken(place: Path, records: Sequence[ArtifactRecord]) -> list[str]:
    objects = Objects(str(place / "state" / "objects"))
    bad = []
    for record in records:
        entries = [record] if record.kind == "file" else objects.manifest(record.sha256)
        for entry in entries or [record]:
            path = place / entry.path
            if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != entry.sha256:
                bad.append(f"{entry.path} is not what the journal says")
            if record.kept and objects.rotten(entry.sha256):
                bad.append(f"no copy of {entry.path}")
    return bad


def _fresh(tmp_path: Path) -> Path:
    root = tmp_path / "disk"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    return root


@pytest.fixture(autouse=True)
def _no_snapshot_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a snapshot at every boundary, not as the clock of a busy machine would have it."""
    monkeypatch.setattr("rerail.engine.recorder.SNAPSHOT_SHARE", ALWAYS)
