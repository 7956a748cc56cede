"""Which paths a pattern means: one walker for maps, artifacts and inputs, in trees that nobody would make on purpose."""

from __future__ import annotations

import glob
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail import walker
from rerail.adapters import item_sources
from rerail.core.expressions.language import Scope
from rerail.core.item_list import ItemListError
from rerail.core.model import Source
from tests.artifacts.pipelines import producer
from tests.conftest import Project
from tests.pipelines import pipeline

NOTHING = Scope(params={}, steps={}, run={}, env={})


NAMES = st.sampled_from(["a", "b", "c.py", ".hidden", "d e", "[x]", "*"])


TREES = st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=4), st.booleans()), max_size=12)


PATTERNS = [
    "**/*.py",
    "**",
    "*/*",
    "*",
    "./a/*",
    "**/a/**/b",
    "**/**/c.py",
    "a/b",
    "a/../*",
    "*/",
    "**/",
    ".*",
    "**/.hidden",
]


PATTERNS += ["[[]x]/*", "a//b*", "**/*/c.py", "[*]", "?", "a/*/**/*.py", "nothing/*"]


@given(tree=TREES)
def test_where_there_are_no_links_a_pattern_means_what_python_takes_it_for(
    tree: list[tuple[list[str], bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for parts, is_directory in tree:
        path = root.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir() if is_directory else path.touch(exist_ok=False)
        except (FileExistsError, NotADirectoryError):
            continue
    for pattern in [*PATTERNS, f"{root}/**/a"]:  # none that ends with `a/**`, which Python takes for `a/` too
        wanted = sorted({path for path in glob.glob(pattern, root_dir=root, recursive=True) if path})
        found = item_sources.read(Source(kind="glob", value=pattern), NOTHING, str(root))
        assert found == wanted, pattern


def farm(root: Path) -> None:
    """A tree of two directories, with links around and out of it."""
    (root / "t/a").mkdir(parents=True)
    for number in range(3):
        (root / f"t/a/up{number}").symlink_to("..")
    (root / "t/a/here").symlink_to(".")
    (root / "t/root").symlink_to("/")
    (root / "t/proc").symlink_to("/proc")
    (root / "t/itself").symlink_to("itself")
    (root / "t/one").symlink_to("two")
    (root / "t/two").symlink_to("one")
    (root / "t/gone").symlink_to("nowhere")
    os.mkfifo(root / "t/fifo.py")
    for path in ("t/x.py", "t/a/y.py", "t/a/z.txt"):
        (root / path).write_text("x")
    (root / "t/link.py").symlink_to("x.py")


PIPELINE = """
steps:
  - id: m
    map: {over: {glob: "t/**/*.py"}, key: "${{ item }}"}
    steps: [{run: 'test -e go || exit 1; echo ${{ item }} >> "$LEDGER"'}]
"""


def test_links_around_and_out_of_a_tree_are_not_followed(project: Project) -> None:
    farm(project.root)
    found = subprocess.run(["find", "t", "-name", "*.py"], cwd=project.root, capture_output=True, text=True, check=True)
    expected = sorted(found.stdout.split())
    assert len(expected) == 4
    project.pipeline(PIPELINE)

    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.rerail("plan", "pipeline.yaml", check=0)
    project.rerail("resume", "r", "--dry-run", check=0)
    (project.root / "go").touch()
    project.rerail("resume", "r", check=0)
    assert sorted(project.ledger()) == expected


def test_artifacts_and_inputs_are_found_by_the_same_walker(project: Project) -> None:
    farm(project.root)
    (project.root / "t/fifo.py").unlink()
    project.pipeline("steps: [{id: a, run: 'true', artifacts: ['t/**/*.txt'], inputs: ['t/**/y.py']}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    (record,) = project.json("show", "r")["steps"]
    assert "t/**/*.txt" in str(record)


def test_a_link_that_is_named_or_matched_by_name_is_followed(tmp_path: Path) -> None:
    farm(tmp_path)

    def paths(pattern: str) -> list[str]:
        found: list[str] = item_sources.read(Source(kind="glob", value=pattern), NOTHING, str(tmp_path))
        return found

    assert paths("t/a/up0/a/*.txt") == ["t/a/up0/a/z.txt"]
    assert "t/a/up1/x.py" in paths("t/a/*/x.py")
    assert paths("t/a/up0/**/*.txt") == ["t/a/up0/a/z.txt"]


def test_a_tree_that_is_deeper_than_python_goes(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    depth = 1500
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)

    try:
        assert len(list(walker.matching(str(tmp_path), "**"))) == depth
        assert len(list(walker.matching(str(tmp_path), "**/d/**/d/**/d"))) == depth - 2
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # pytest's own clean-up would recurse too deep


def test_what_nobody_can_have_meant_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        (tmp_path / f"f{number}").touch()
    monkeypatch.setattr(walker, "MAX_ENTRIES", 99)
    with pytest.raises(ItemListError, match="more than 99 files and directories to scan"):
        item_sources.read(Source(kind="glob", value="nothing*"), NOTHING, str(tmp_path))
    monkeypatch.setattr(walker, "MAX_ENTRIES", 100)
    monkeypatch.setattr(item_sources, "MAX_ITEMS", 99)
    with pytest.raises(ItemListError, match=r"more than 99 paths match \*"):
        item_sources.read(Source(kind="glob", value="*"), NOTHING, str(tmp_path))


def test_links_that_go_in_circles_are_not_followed(project: Project) -> None:
    script = "mkdir -p out/sub; echo x > out/sub/a.txt; ln -sfn . out/l1; ln -sfn . out/l2; ln -sfn .. out/sub/up"
    project.pipeline(pipeline(producer("a", script, 'artifacts: ["out/**/*.txt"]')))

    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert "out/**/*.txt  a     2 B, 1 file" in project.rerail("show", "r", check=0).stdout
