"""The index of runs: a cache that is appended to, and rewritten only when it has grown by a lot."""

from __future__ import annotations

import signal

from rerail.stores import index
from tests.conftest import Project, eventually
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


# The list and its index


def test_the_index_is_a_cache_that_is_never_trusted_over_the_runs(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}, {id: b, run: 'test -e fixed'}]")
    for run in ("one", "two"):
        project.rerail("run", "pipeline.yaml", "--id", run, check=1)
    index = project.root / ".rerail" / "index.jsonl"
    whole, rows = index.read_bytes(), project.json("list")
    assert [row["status"] for row in rows] == ["failed", "failed"]
    for text in (b"", b"rubbish\n", whole[:-40], whole.replace(b'"failed"', b'"completed"'), whole + whole):
        index.write_bytes(text)
        assert [{**row, "owner": None} for row in project.json("list")] == rows
    index.unlink()
    before = project.state_digest()
    assert [{**row, "owner": None} for row in project.json("list")] == rows
    assert project.state_digest() == before  # a reader writes nothing
    index.write_bytes(whole)
    (project.root / "fixed").touch()
    project.rerail("resume", "two", check=0)

    assert {row["run_id"]: row["status"] for row in project.json("list")} == {"one": "failed", "two": "completed"}
    journal = project.run_dir("one") / "journal-0001.jsonl"
    data = bytearray(journal.read_bytes())
    data[200] ^= 1
    journal.write_bytes(data)
    assert {row["run_id"]: row["status"] for row in project.json("list")} == {"one": "damaged", "two": "completed"}


def test_a_crashed_run_is_listed_as_one_though_the_index_knows_better(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'test -e fixed && { echo a >> $LEDGER; sleep 60; }'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "fixed").touch()
    process = project.spawn("resume", "r")
    eventually(lambda: project.ledger() == ["a"], "it runs")
    assert project.json("list")[0]["status"] == "running"
    process.send_signal(signal.SIGKILL)
    process.communicate()

    assert project.json("list")[0]["status"] == "crashed"
    assert "! crashed" in project.rerail("list", check=0).stdout
