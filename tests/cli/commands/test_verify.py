"""`rerail verify`: proves every byte and changes none."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Project


def test_verify_proves_every_byte_and_changes_none(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}, {id: b, run: 'exit 1'}]")
    project.rerail("run", "pipeline.yaml", "--id", "good", check=1)
    project.rerail("run", "pipeline.yaml", "--id", "bad", check=1)
    journal = project.run_dir("bad") / "journal-0001.jsonl"
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(data)
    before = project.state_digest()

    assert "run good is intact: 6 records in 1 segment" in project.rerail("verify", "good", check=0).stderr
    everything = project.rerail("verify", "--all", check=6)
    assert "run bad is NOT intact" in everything.stderr
    assert "next: rerail repair bad" in everything.stderr
    assert "1 of 2 runs are intact" in everything.stderr
    rows = json.loads(project.rerail("verify", "--all", "--json", check=6).stdout)
    assert {row["run_id"]: row["intact"] for row in rows} == {"good": True, "bad": False}
    assert project.state_digest() == before
    project.rerail("verify", check=2)


@pytest.mark.scenario("J15")
def test_verify_notices_a_checkpoint_that_tells_another_story(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.run_dir("r") / "pipeline.yaml").write_text("steps: [{id: a, run: 'false'}]")

    assert "not the pipeline the journal vouches for" in project.rerail("verify", "r", check=6).stderr
