"""Any damage to any artifacts of any DAG: the steps that run again are those a brute-force oracle names, and no others.

The runs are real, the files are really damaged, and what ran is told by a ledger that the steps themselves keep. The
oracle below shares nothing with the planner: it simulates contents.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rerail import api
from rerail.core.model import Artifact, Call, Pipeline, RunOptions, Step
from rerail.core.plan import ExecuteOptions
from rerail.stores.directory import DirectoryStore
from tests.sweeps import part

pytestmark = pytest.mark.privileges

DAMAGES = ("delete", "truncate", "empty", "flip", "sly", "directory", "symlink", "older", "touch")


class Node:
    """A step of the DAG: what it needs, how its artifact comes about, and what is declared."""

    def __init__(self, name: str, needs: list[str], **traits: Any) -> None:
        self.name = name
        self.needs = needs
        self.moody = traits.get("moody", False)  # writes something else each time it runs
        self.constant = traits.get("constant", False)  # writes the same whatever it reads
        self.declares = traits.get("declares", False)  # its inputs: the artifacts of what it needs
        self.temporary = traits.get("temporary", False)
        self.kept = traits.get("kept", True)

    @property
    def path(self) -> str:
        return f"out/{self.name}.txt"

    def __repr__(self) -> str:
        traits = [name for name in ("moody", "constant", "declares", "temporary", "kept") if getattr(self, name)]
        return f"{self.name} needs {self.needs} {traits}"


class World:
    """A project in which a DAG is run, damaged and resumed."""

    def __init__(self, root: Path, nodes: list[Node]) -> None:
        self.root = root
        self.nodes = {node.name: node for node in nodes}
        self.ran: list[str] = []
        self.broken: set[str] = set()
        (root / "out").mkdir()
        self.store = DirectoryStore(str(root / ".rerail"))
        steps = [self._step(node) for node in nodes]
        self.pipeline = Pipeline(name="p", steps=tuple(steps))
        self.functions = {node.name: self._function(node) for node in nodes}

    def _step(self, node: Node) -> Step:
        inputs = tuple(Artifact(path=self.nodes[need].path) for need in node.needs) if node.declares else ()
        made = Artifact(path=node.path, keep=node.kept, temporary=node.temporary)
        needs = tuple(node.needs)
        return Step(id=node.name, action=Call(target=node.name), needs=needs, inputs=inputs, artifacts=(made,))

    def _function(self, node: Node) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            self.ran.append(node.name)
            if node.name in self.broken:
                raise RuntimeError("broken on purpose")
            read = "".join((self.root / self.nodes[need].path).read_text() for need in node.needs)
            (self.root / node.path).write_text(content(node, read, self.ran.count(node.name)))
            return {}

        return run

    def start(self, broken: set[str]) -> None:
        self.broken = broken
        request = api.StartRequest(pipeline_path=str(self.root / "p.yaml"), run_id="r", options=RunOptions(parallel=2))
        api.start_pipeline(self.store, self.pipeline, b"", request, base_dir=str(self.root), functions=self.functions)

    def resume(self, *, restore: bool) -> list[str]:
        """Resume with nothing broken any more; what ran."""
        self.broken = set()
        before = len(self.ran)
        request = api.ResumeRequest(pipeline=self.pipeline, execute=ExecuteOptions(restore=restore))
        api.resume(self.store, "r", (), request, base_dir=str(self.root), functions=self.functions)
        return self.ran[before:]

    def completed(self) -> set[str]:
        return {step for (step, _), unit in self.store.read("r").state.units.items() if unit.status == "completed"}

    def files(self) -> dict[str, str]:
        return {name: (self.root / node.path).read_text() for name, node in self.nodes.items()}


def content(node: Node, read: str, times: int) -> str:
    digest = hashlib.sha256(read.encode()).hexdigest()[:8] if not node.constant else "whatever"
    return f"{node.name} made of {digest}" + (f", the {times}. time" if node.moody else "") + "\n"


def damage(path: Path, how: str) -> None:
    data, status = path.read_bytes(), path.stat()
    match how:
        case "delete":
            path.unlink()
        case "truncate":
            path.write_bytes(data[:5])
        case "empty":
            path.write_bytes(b"")
        case "flip":
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        case "sly":  # same size, same times
            path.write_bytes(data[::-1])
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        case "directory":
            path.unlink()
            path.mkdir()
        case "symlink":
            path.rename(path.with_suffix(".moved"))
            path.symlink_to(path.with_suffix(".moved").name)
        case "older":
            path.write_text("what an older run had made\n")
        case "touch":
            os.utime(path, ns=(1, 1))


def oracle(world: World, completed: set[str], damaged: set[str], *, restore: bool) -> list[str]:
    """Which steps run in the second life, by simulating what everything would contain."""
    nodes = world.nodes
    before = {name: world.ran.count(name) for name in nodes}
    order = list(nodes)

    def gone(name: str) -> bool:
        return name in damaged and not (restore and nodes[name].kept)

    maybe: set[str] = set()
    while True:  # what may run: unfinished, not restorable and needed, or behind something that may
        grown = set(maybe)
        for name in order:
            consumers = readers(nodes, name)
            wanted = not nodes[name].temporary or bool(grown & set(consumers))
            if name not in completed or (gone(name) and wanted) or grown & set(nodes[name].needs):
                grown.add(name)
        if grown == maybe:
            break
        maybe = grown
    runs, text = [], {name: (world.root / ".clean" / f"{name}.txt").read_text() for name in completed}
    different: dict[str, bool] = {}
    for name in order:
        node = nodes[name]
        above = ancestors(nodes, name)
        changed = [other for other in (node.needs if node.declares else above) if different[other]]
        consumers = readers(nodes, name)
        lost = gone(name) and (not node.temporary or bool(maybe & set(consumers)))
        if name not in completed or lost or changed:
            runs.append(name)
            new = content(node, "".join(text[need] for need in node.needs), before[name] + 1)
            different[name] = name not in completed or new != text[name]
            text[name] = new
        else:
            different[name] = False
    return runs


def readers(nodes: dict[str, Node], name: str) -> list[str]:
    """Who may read what a node made: who declares it, and without a declaration everybody behind it."""
    return [
        other
        for other, node in nodes.items()
        if (name in node.needs if node.declares and node.needs else name in ancestors(nodes, other))
    ]


def ancestors(nodes: dict[str, Node], name: str) -> set[str]:
    found: set[str] = set()
    stack = list(nodes[name].needs)
    while stack:
        one = stack.pop()
        if one not in found:
            found.add(one)
            stack += nodes[one].needs
    return found


def scenario(nodes: list[Node], broken: set[str], damages: dict[str, str], *, restore: bool) -> None:
    root = Path(tempfile.mkdtemp(prefix="rerail-cascade-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        world = World(root, nodes)
        world.start(broken)
        completed = world.completed()
        (root / ".clean").mkdir()
        for name in completed:
            shutil.copy(root / world.nodes[name].path, root / ".clean" / f"{name}.txt")
        damaged = {name for name, how in damages.items() if name in completed and how != "touch"}
        for name, how in damages.items():
            if name in completed:
                damage(root / world.nodes[name].path, how)
        expected = oracle(world, completed, damaged, restore=restore)

        assert sorted(world.resume(restore=restore)) == sorted(expected)

        for node in nodes:  # everything that counts stands, whatever had happened to it
            unneeded = node.temporary and node.name not in expected and node.name in damaged
            if not unneeded and readable(world, node, damaged, expected):
                read = "".join((root / world.nodes[need].path).read_text() for need in node.needs)
                assert (root / node.path).read_text() == content(node, read, world.ran.count(node.name))
    finally:
        shutil.rmtree(root)


def readable(world: World, node: Node, damaged: set[str], ran: list[str]) -> bool:
    """Whether what a node had read is still what stands there: not a temporary that nobody needed any more."""
    return not any(world.nodes[need].temporary and need in damaged and need not in ran for need in node.needs)


def dag(size: int) -> list[Node]:
    """A fixed one: a chain, a diamond, a fan, with every trait somewhere."""
    shape: list[tuple[str, list[str], dict[str, bool]]] = [
        ("a", [], {}),
        ("b", ["a"], {"moody": True}),
        ("c", ["a"], {"declares": True}),
        ("d", ["b", "c"], {}),
        ("e", ["d"], {"constant": True}),
        ("f", ["e"], {}),
        ("g", ["c"], {"temporary": True}),
        ("h", ["g"], {"declares": True}),
        ("i", ["h", "f"], {"declares": True}),
        ("j", ["i"], {"moody": True, "temporary": True}),
        ("k", ["j"], {}),
        ("l", ["k", "e"], {"declares": True}),
        ("m", ["l"], {}),
    ]
    return [Node(name, needs, **traits) for name, needs, traits in shape[:size]]


def all_damages() -> Iterator[tuple[str, dict[str, str]]]:
    for number, how in enumerate(DAMAGES):
        yield how, {name: how for at, name in enumerate("abcdefghijkl") if at % 4 == number % 4}


@pytest.mark.scenario("B12", "E6", "K6")
@pytest.mark.parametrize("restore", [True, False], ids=["restore", "no-restore"])
@pytest.mark.parametrize(("how", "damages"), list(all_damages()), ids=[how for how, _ in all_damages()])
def test_thirteen_steps_and_every_kind_of_damage(how: str, damages: dict[str, str], restore: bool) -> None:
    scenario(dag(13), {"m"}, damages, restore=restore)


@pytest.mark.parametrize("victim", "abcdefghijkl")
def test_each_artifact_alone_without_a_copy(victim: str) -> None:
    nodes = dag(13)
    for node in nodes:
        node.kept = False
    scenario(nodes, {"m"}, {victim: "delete"}, restore=True)


@st.composite
def dags(draw: st.DrawFn) -> list[Node]:
    size = draw(st.integers(2, 8))
    nodes = []
    for at in range(size):
        needs = draw(st.lists(st.sampled_from([f"s{n}" for n in range(at)]), max_size=3, unique=True)) if at else []
        traits = {trait: draw(st.booleans()) for trait in ("moody", "constant", "declares", "temporary", "kept")}
        traits["temporary"] = traits["temporary"] and draw(st.booleans())
        nodes.append(Node(f"s{at}", sorted(needs), **traits))
    return nodes


@pytest.mark.scenario("E6")
@settings(max_examples=part(8, 120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random_dags_and_random_damage(data: st.DataObject) -> None:
    nodes = data.draw(dags())
    names = [node.name for node in nodes]
    broken = set(data.draw(st.lists(st.sampled_from(names), max_size=2, unique=True)))
    damages = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(DAMAGES), max_size=len(names)))
    scenario(nodes, broken, damages, restore=data.draw(st.booleans()))


def test_what_stands_in_the_way_of_a_step_that_runs_after_all_is_moved_aside() -> None:
    """Its flaw did not matter, being temporary; then what it needs came out different."""
    nodes = [Node("a", [], moody=True, kept=False), Node("b", ["a"], temporary=True, kept=False)]
    scenario(nodes, set(), {"a": "delete", "b": "directory"}, restore=False)


@pytest.mark.scenario("E7")
def test_a_copy_that_rots_between_audit_and_restore_makes_another_plan(tmp_path: Path) -> None:
    world = World(tmp_path, [Node("a", []), Node("b", ["a"]), Node("c", ["b"])])
    world.start({"c"})
    (tmp_path / world.nodes["a"].path).unlink()
    world.broken = set()
    before = len(world.ran)
    plans: list[list[str]] = []

    class Rot(api.ResumeObserver):
        def on_plan(self, ready: api.ResumePlan) -> None:
            plans.append([decision.decision for decision in ready.plan.decisions])
            for copy in (tmp_path / ".rerail" / "objects").glob("??/*"):
                copy.chmod(0o600)
                copy.write_bytes(copy.read_bytes()[::-1])

    request = api.ResumeRequest(pipeline=world.pipeline)
    api.resume(world.store, "r", (), request, base_dir=str(tmp_path), functions=world.functions, observer=Rot())

    assert plans == [["restore", "reuse", "rerun"], ["rerun", "rerun", "rerun"]]
    assert world.ran[before:] == ["a", "c"]  # b is kept: a came out the same
    assert world.files()["a"] == content(world.nodes["a"], "", 2)
