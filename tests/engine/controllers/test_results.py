"""The results of maps as files: a cache of the journal."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Project
from tests.pipelines import ledger, results


@pytest.mark.scenario("E8")
def test_results_that_were_lost_are_put_back_from_the_journal(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: m, map: {over: [a, b]}, steps: [{run: 'echo v=${{ item }} >> $RERAIL_OUTPUT'}]}
  - {id: use, run: 'test -e ok; cat ${{ steps.m.outputs.results_file }} >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.run_dir("r") / "results/m.jsonl").write_text("tampered with\n")
    (project.root / "ok").touch()
    assert "rebuilt from the journal" in project.rerail("resume", "r", check=0).stderr

    assert [json.loads(line)["key"] for line in ledger(project)] == ["a", "b"]


def test_results_are_gathered_only_once_they_are_durable(project: Project) -> None:
    """As after a power cut that lost the last batch: all steps of the last item are done, and the item is not."""
    project.pipeline("""
steps:
  - id: m
    map: {over: [a]}
    steps:
      - {id: one, run: 'echo one >> "$LEDGER"; echo v=1 >> $RERAIL_OUTPUT'}
      - {id: two, run: 'echo two >> "$LEDGER"'}
  - {id: after, run: 'true'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    journal = project.run_dir("r") / "journal-0001.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    last = next(at for at, line in enumerate(lines) if b'"step-completed"' in line and b'"step":"m/two"' in line)
    journal.write_bytes(b"".join(lines[: last + 1]))
    (project.run_dir("r") / "checkpoint.json").unlink()
    for old in (project.run_dir("r") / "history").iterdir():
        old.unlink()
    done = project.rerail("resume", "r", check=0)

    assert ledger(project) == ["one", "two"]
    assert "lost" not in done.stderr.replace("later records, if any, are lost", "")
    assert results(project) == [{"key": "a", "outputs": {"v": 1}}]
