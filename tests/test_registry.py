"""Plug-ins: a store, an executor and a kind of another package, found by their entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rerail import registry
from rerail.errors import UsageError
from tests.conftest import Project

PACKAGE = """
import os
from rerail.executors.local import open_executor as local
from rerail.kinds.builtin import Shell
from rerail.ports import Capabilities, ProcessWork
from rerail.stores.directory import DirectoryStore


def note(text):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(text + "\\n")


class ToyStore(DirectoryStore):
    url = "toy:" + os.environ.get("TOY_PLACE", "")

    def create(self, header, pipeline):
        note("stored-" + header.run_id)
        return super().create(header, pipeline)


def open_store(url):
    return ToyStore(os.environ["TOY_PLACE"])


class ToyExecutor:
    def __init__(self, setup):
        self._inner = local(setup)
        self.capabilities = Capabilities()
        self.signal_pipes = (-1, -1)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def guard(self):
        pass

    def start(self, attempt, work):
        note("started-" + attempt.unit.step)
        self._inner.start(attempt, work)


class Loud(Shell):
    def work(self, attempt):
        work = super().work(attempt)
        return ProcessWork(argv=work.argv, env={**work.env, "LOUD": "loud"}, files=work.files)
"""

ENTRY_POINTS = """
[rerail.stores]
toy = toy_package:open_store
broken = no_such_package:open_store
file = toy_package:open_store

[rerail.executors]
toy = toy_package:ToyExecutor

[rerail.kinds]
loud = toy_package:Loud
"""

PROGRAM = """
import sys
from rerail import api
from rerail.stores.locate import locate
store = locate(None, ".")
options = dict(executor=sys.argv[2], kinds={"run": "loud"})
request = api.StartRequest(pipeline_path=sys.argv[1], run_id="r2", **options)
print(api.start(store, request, base_dir=store.base_dir).end.status)
"""


@pytest.fixture
def installed(project: Project, tmp_path: Path) -> Project:
    """A project in whose Python a package with plug-ins is installed."""
    place = tmp_path / "site"
    metadata = place / "toy_package-1.0.dist-info"
    metadata.mkdir(parents=True)
    (place / "toy_package.py").write_text(PACKAGE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = [str(place), *filter(None, [project.env.get("PYTHONPATH")])]
    project.env |= {"PYTHONPATH": os.pathsep.join(paths), "TOY_PLACE": str(tmp_path / "toys")}
    return project


def program(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=project.root, env=project.env, capture_output=True, text=True, check=False)


def test_every_command_works_with_a_store_of_another_package(installed: Project, tmp_path: Path) -> None:
    installed.pipeline("steps: [{id: a, run: 'echo said; test -e fixed', artifacts: [made]}]")
    to = ("--store", "toy:anything")
    installed.rerail("run", "pipeline.yaml", "--id", "r", *to, check=1)
    installed.env["RERAIL_STORE"] = "toy:anything"
    (installed.root / "fixed").touch()
    (installed.root / "made").write_text("x")

    assert installed.ledger() == ["stored-r"]
    assert (tmp_path / "toys" / "runs" / "r").is_dir()
    assert not (installed.root / ".rerail").exists()
    assert [row["run_id"] for row in installed.json("list")] == ["r"]
    assert "said" in installed.rerail("logs", "r", check=0).stdout
    installed.rerail("resume", "r", check=0)
    for command in ("show", "verify", "plan"):
        installed.rerail(command, "r", check=0)
    installed.rerail("doctor")
    installed.rerail("delete", "r", "--yes", check=0)
    assert f"no runs in toy:{tmp_path}/toys" in installed.rerail("list", check=0).stderr


def test_a_program_chooses_an_executor_and_a_kind(installed: Project) -> None:
    path = installed.pipeline("steps: [{id: a, run: 'echo $LOUD >> \"$LEDGER\"'}]")
    done = program(installed, str(path), "toy")

    assert done.stdout.strip() == "completed", done.stderr
    assert installed.ledger() == ["started-a", "loud"]


def test_an_executor_that_does_not_share_files_is_not_given_steps_that_have_some(installed: Project) -> None:
    path = installed.pipeline("steps: [{id: a, run: 'true', artifacts: [made]}]")
    done = program(installed, str(path), "toy")

    assert "step a has artifacts or inputs, and the executor toy does not share files with rerail" in done.stderr
    assert installed.ledger() == []


def test_an_unknown_name_is_told_which_there_are_and_nothing_is_created(installed: Project) -> None:
    path = installed.pipeline("steps: [{id: a, run: 'true'}]")

    refused = installed.rerail("run", "pipeline.yaml", "--store", "tyo:x", check=2)
    assert "unknown store `tyo`; known: broken, dir, file, memory, toy" in refused.stderr
    assert "unknown executor `tyo`; known: local, toy" in program(installed, str(path), "tyo").stderr
    assert not (installed.root / ".rerail").exists()
    refused = installed.rerail("list", "--store", "broken:x", check=2)
    assert "the store `broken` (no_such_package:open_store) cannot be loaded" in refused.stderr


def test_a_package_cannot_take_the_place_of_a_built_in_name(installed: Project) -> None:
    installed.pipeline("steps: [{id: a, run: 'true'}]")
    installed.rerail("run", "pipeline.yaml", "--store", f"file:{installed.root}/mine", "--id", "r", check=0)

    assert installed.ledger() == []
    assert (installed.root / "mine" / "runs" / "r").is_dir()


def test_nothing_is_looked_up_for_a_built_in_name() -> None:
    code = (
        "import sys; from rerail import registry; registry.find_store('dir'); print('importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_every_built_in_name_stands_for_something() -> None:
    for scheme in registry.BUILTIN["stores"]:
        assert callable(registry.find_store(scheme))
    for name in registry.BUILTIN["executors"]:
        assert callable(registry.find_executor(f"{name}:"))
    for name in registry.BUILTIN["kinds"]:
        assert callable(registry.find_kind(name).work)
    with pytest.raises(UsageError, match="unknown kind `nothing`; known: "):
        registry.find_kind("nothing")


def test_a_run_in_memory_leaves_nothing_behind(project: Project) -> None:
    project.pipeline("""
steps:
  - id: a
    run: 'echo "[$RERAIL_RUN_DIR]" >> "$LEDGER"; echo x > made'
    artifacts: [made]
  - id: m
    needs: [a]
    map: {over: [1, 2]}
    steps: [{id: one, run: 'echo "n=${{ item }}" >> "$RERAIL_OUTPUT"'}]
""")
    project.rerail("run", "pipeline.yaml", "--store", "memory:", check=0)

    assert project.ledger() == ["[]"]
    assert not (project.root / ".rerail").exists()
