"""The index of runs: a cache that is appended to, and rewritten only when it has grown by a lot."""

from __future__ import annotations

from tests.conftest import Project


def test_a_small_index_is_appended_to_and_not_rewritten(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "one", check=0)
    path = project.root / ".rerail" / "index.jsonl"
    first, inode = path.read_bytes(), path.stat().st_ino

    project.rerail("run", "pipeline.yaml", "--id", "two", check=0)

    assert path.stat().st_ino == inode
    assert path.read_bytes().startswith(first)
    assert {one["run_id"] for one in project.json("list")} == {"one", "two"}
