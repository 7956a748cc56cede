"""checkpoint.json of runs that completed and failed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.conftest import Project


def test_what_only_rerail_reads_is_apart_in_checkpoint_json_and_not_shown(project: Project) -> None:
    """Every other member is named by docs/reference/checkpoint.md."""
    page = (Path(__file__).parent.parent.parent / "docs/reference/checkpoint.md").read_text()
    project.pipeline(
        "steps:\n"
        "- {id: a, run: 'echo x > a.txt', artifacts: [a.txt]}\n"
        "- {id: m, map: {over: [1, 2]}, steps: [{id: i, run: 'true'}]}\n"
        "- {id: z, run: 'false'}\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    saved = json.loads((project.run_dir("r") / "checkpoint.json").read_text())
    shown = project.json("show", "r")

    by_id = {step["id"]: step for step in saved["steps"]}
    records = (saved, *saved["steps"], by_id["a"]["artifacts"][0], by_id["m"]["items"])
    assert all("internal" in record for record in records)
    assert {"seq", "pipeline_sha256"} <= set(saved["internal"])
    assert {"started_seq", "fingerprint"} <= set(by_id["a"]["internal"])
    assert {"stamp", "kept"} <= set(by_id["a"]["artifacts"][0]["internal"])
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", page))))
    assert {name for record in records for name in record} <= named
    assert '"internal"' not in json.dumps(shown)
