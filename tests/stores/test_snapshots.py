"""A run that is complete, and whose checkpoint.json does not say so."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from tests.conftest import Project

# Dies when the last record is durable and told, and before the last snapshot.
DYING = """
import os, sys
from rerail.cli.main import call
from rerail.stores import writer

save = writer.DirectoryRunWriter.save_snapshot

def dying(self, checkpoint, **how):
    if checkpoint.status == "completed":
        os.kill(os.getpid(), 9)
    save(self, checkpoint, **how)

writer.DirectoryRunWriter.save_snapshot = dying
sys.exit(call(sys.argv[1:]))
"""


@pytest.mark.parametrize("damage", ["behind", "missing", "damaged"])
def test_a_resume_with_nothing_to_do_brings_checkpoint_json_up_to_date(project: Project, damage: str) -> None:
    project.pipeline("steps: [{id: a, run: 'echo a >> \"$LEDGER\"'}]")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", program=(sys.executable, "-c", DYING))
    process.communicate()
    assert process.returncode == -9
    path = project.root / ".rerail" / "runs" / "r" / "checkpoint.json"
    if damage == "missing":
        path.unlink()
    elif damage == "damaged":
        path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    journal = [one.read_bytes() for one in sorted(path.parent.glob("journal-*"))]

    project.rerail("resume", "r", "--dry-run", check=0)
    assert damage == "missing" or json.loads(path.read_bytes())["status"] != "completed"  # dry runs write nothing
    done = project.rerail("resume", "r", check=0)

    assert "nothing to resume" in done.stderr
    assert json.loads(path.read_bytes())["status"] == "completed"
    assert [one.read_bytes() for one in sorted(path.parent.glob("journal-*"))] == journal
    assert "intact" in project.rerail("verify", "r", check=0).stderr
    assert project.ledger() == ["a"]
    shutil.rmtree(path.parent / "history", ignore_errors=True)
    assert project.json("show", "r")["status"] == "completed"


FAILING = "steps: [{id: a, run: 'echo n=1 >> $RERAIL_OUTPUT'}, {id: b, run: exit 1}]"


def test_the_integrity_hash_is_what_the_format_says(project: Project) -> None:
    """With the member taken out of the text, as docs/reference/checkpoint.md tells anybody to do."""
    import hashlib

    project.pipeline(FAILING)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    text = (project.run_dir("r") / "checkpoint.json").read_text()
    before, _, after = text.partition(',\n  "integrity_hash": "')
    assert hashlib.sha256((before + "\n}").encode()).hexdigest() == after.removesuffix('"\n}\n')
