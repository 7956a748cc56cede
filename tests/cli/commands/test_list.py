"""`rerail list`: newest first, filtered."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.cli.screen import screen
from tests.conftest import Project, eventually

FAILING = "steps: [{id: a, run: 'echo n=1 >> $RERAIL_OUTPUT'}, {id: b, run: exit 1}]"


@pytest.mark.scenario("K3")
def test_lists_are_newest_first_and_filtered(project: Project) -> None:
    project.pipeline(FAILING)
    project.pipeline("steps: [{run: 'true'}]", "other.yaml")
    project.rerail("run", "pipeline.yaml", "--id", "one", check=1)
    project.rerail("run", "other.yaml", "--id", "two", "--label", "team=docs", check=0)

    assert [run["run_id"] for run in project.json("list")] == ["two", "one"]
    assert [run["run_id"] for run in project.json("list", "--status", "failed")] == ["one"]
    assert [run["run_id"] for run in project.json("list", "--pipeline", "other")] == ["two"]
    assert [run["run_id"] for run in project.json("list", "--resumable")] == ["one"]
    assert [run["run_id"] for run in project.json("list", "--label", "team=docs")] == ["two"]
    assert [run["run_id"] for run in project.json("list", "--limit", "1")] == ["two"]
    assert [event["seq"] for event in project.json("history", "one")] == [6, 5, 4, 3, 2, 1]


def test_params_are_shown_as_expressions_see_them(project: Project) -> None:
    project.pipeline(
        "params: {flag: false, specs: {type: list, default: []}, level: draft}\n"
        'steps: [{id: a, run: \'echo "${{ params.flag }} ${{ params.specs }} ${{ params.level }}" >> "$LEDGER"\'}]'
    )
    given = ("-p", "flag=yes", "-p", "specs=a", "-p", "specs=b,c")
    project.rerail("run", "pipeline.yaml", "--id", "r", *given, check=0)
    project.pipeline("params: {flag: false}\nsteps: [{id: a, run: 'true'}]", "other.yaml")
    project.rerail("run", "other.yaml", "--id", "s", check=0)

    assert project.ledger() == ["true", '["a","b,c"]', "draft"]
    assert 'flag=true specs=["a","b,c"] level=draft' in project.rerail("list", check=0).stdout
    assert "flag=false" in project.rerail("list", check=0).stdout
    assert 'flag=true specs=["a","b,c"] level=draft' in project.rerail("show", "r", check=0).stdout


def test_the_last_value_counts_of_a_param_that_is_no_list(project: Project) -> None:
    project.pipeline("params: {level: draft}\nsteps: [{run: 'echo ${{ params.level }} >> $LEDGER'}]")

    project.rerail("run", "pipeline.yaml", "-p", "level=a", "-p", "level=b", "-p", "level=c", check=0)

    assert project.ledger() == ["c"]


WIDE = """
name: content
params: {topic: {required: true}, level: 3}
steps:
  - id: write
    map: {over: [one, two, three]}
    steps: [{run: 'echo "{\\"cost_usd\\": 0.25}" >> $RERAIL_METRICS; test ${{ item }} != two'}]
"""


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 120, 200])
def test_the_run_and_its_status_are_never_cut(project: Project, columns: int) -> None:
    project.pipeline(WIDE)
    ids = ["20261116-213253-358sabpb", "20261116-213254-011abcde"]
    for run_id in ids:
        project.rerail("run", "-p", "topic=tides of the northern seas and their fish", "--id", run_id, check=1)
    shown = screen(project, "list", columns=columns)
    lines = shown.end().splitlines()
    for run_id in ids:
        line = next(line for line in lines if run_id in line)
        assert "✗ failed" in "".join(lines[lines.index(line) : lines.index(line) + 2])  # it is wrapped at 30 columns
    assert ("TOPIC" in lines[0]) == (columns >= 200)
    assert ("PARAMS" in lines[0]) == (columns == 120)
    assert ("ITEMS" in lines[0]) == (columns >= 120)
    assert ("TOOK" in lines[0]) == (columns >= 80)
    assert all(len(line) <= columns for line in lines)
    assert "".join(lines).replace(" ", "").endswith("2unfinished·next:rerailresume")


def test_twenty_runs_are_shown_if_no_number_is_asked_for(project: Project) -> None:
    project.pipeline("params: {n: 0}\nsteps: [{run: 'true'}]")
    for number in range(22):
        project.rerail("run", "-p", f"n={number}", "--id", f"run-{number}", check=0)
    default = project.rerail("list", check=0)
    assert len(default.stdout.splitlines()) == 21
    assert "run-21" in default.stdout.splitlines()[1]
    assert default.stderr == "  20 of 22 runs (--all)\n"
    everything = project.rerail("list", "--all", check=0)
    assert len(everything.stdout.splitlines()) == 23
    assert everything.stderr == ""
    assert len(project.rerail("list", "--limit", "3", check=0).stdout.splitlines()) == 4
    assert len(project.json("list")) == 22
    assert len(project.json("list", "--limit", "3")) == 3
    project.rerail("list", "--limit", "3", "--all", check=2)


def test_runs_are_selected_by_their_last_activity(project: Project) -> None:
    project.pipeline(FAILING)
    for run_id in ("old", "new"):
        project.rerail("run", "--id", run_id, check=1)
    _grow_old(project.root)
    assert [run["run_id"] for run in project.json("list", "--since", "2h")] == ["new"]
    assert [run["run_id"] for run in project.json("list", "--since", "2000-01-01")] == ["new", "old"]
    assert "neither a day" in project.rerail("list", "--since", "yesterday", check=2).stderr
    project.rerail("resume", "old", check=1)
    assert len(project.json("list", "--since", "2h")) == 2


def _grow_old(root: Path) -> None:
    """Make the run `old` one that was active long ago, as a machine with a wrong clock would have recorded it."""
    index = root / ".rerail" / "index.jsonl"
    rows = index.read_bytes().splitlines()
    aged = []
    for row in rows:
        data = json.loads(row[17:])
        if data["summary"]["run_id"] == "old":
            data["summary"] |= dict.fromkeys(("created_at", "updated_at"), "2001-01-01T00:00:00Z")
        body = json.dumps(data).encode()
        aged.append(hashlib.sha256(body).hexdigest()[:16].encode() + b" " + body)
    index.write_bytes(b"\n".join(aged) + b"\n")


def test_the_end_of_the_list_says_what_to_type_next(project: Project) -> None:
    project.pipeline("params: {n: 0}\nsteps: [{run: 'echo >> $LEDGER; test -e fixed || exit 1'}]")
    project.pipeline("steps: [{run: 'echo x >> $LEDGER; until test -e go; do sleep 0.02; done'}]", "wait.yaml")
    for number in range(2):
        project.rerail("run", "-p", f"n={number}", "--id", f"run-{number}", check=1)
    assert project.rerail("list", check=0).stderr == "  2 unfinished · next: rerail resume\n"
    filtered = project.rerail("list", "--pipeline", "pipeline", check=0).stderr
    assert filtered == "  2 unfinished · next: rerail resume run-1\n"
    alive = project.spawn("run", "wait.yaml", "--id", "alive")
    eventually(lambda: project.ledger() == ["x"])
    assert project.rerail("list", check=0).stderr == "  1 running · 2 unfinished · next: rerail resume run-1\n"
    (project.root / "fixed").touch()
    for number in range(2):
        project.rerail("resume", f"run-{number}", check=0)
    assert project.rerail("list", check=0).stderr == "  1 running · next: rerail watch\n"
    (project.root / "go").touch()
    assert alive.wait() == 0
    assert project.rerail("list", check=0).stderr == ""
    journal = project.run_dir("alive") / "journal-0001.jsonl"
    journal.write_bytes(b"x" + journal.read_bytes()[1:])
    assert project.rerail("list", check=0).stderr == "  1 damaged · next: rerail repair alive\n"
