"""`rerail doctor`: where, and how well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Project


@pytest.mark.scenario("F10", "M5")
def test_doctor_says_where_and_how_well(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", check=0)
    found = {row["what"]: row for row in project.json("doctor")}

    assert str(project.root / ".rerail") in found["store"]["found"]
    assert found["locks"]["verdict"] == "ok"
    assert "ms per record" in found["sync"]["found"]
    assert found["runs"]["found"] == "1 completed"
    assert project.rerail("doctor", check=0).stdout.count("\n") == len(found)
    shared = project.json("doctor", "--store", "/dev/shm/rerail-doctor-test")
    assert any(row["verdict"] == "warning" and "in memory, lost" in row["found"] for row in shared)
    assert not Path("/dev/shm/rerail-doctor-test").exists()
