"""The index of runs: a cache that is appended to, and rewritten only when it has grown by a lot."""

from __future__ import annotations

from rerail.stores import index
from tests.conftest import Project
from tests.lab.faults import FaultFS


def test_a_small_index_is_appended_to_and_not_rewritten(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "one", check=0)
    root = project.root / ".rerail"
    (row,) = index.load(str(root)).values()
    (root / index.FILE_NAME).unlink()

    with FaultFS() as fs:
        index.append(str(root), str(root / "runs" / "one"), row.segment, row.summary)

    assert [op.kind for op in fs.ops if op.kind in ("rename", "replace", "create")] in ([], ["create"])
    assert index.load(str(root)) == {"one": row}
