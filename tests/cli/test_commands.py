"""The commands around a run: logs, verify, delete, prune, doctor, init, completion, demo, list and its index."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import RERAIL, Project, eventually

TALKING = """
steps:
  - id: a
    needs: []
    run: |
      echo a1; touch a-said; while ! test -e b-said; do sleep 0.02; done; sleep 0.15; echo a2 >&2
  - id: b
    needs: []
    run: |
      while ! test -e a-said; do sleep 0.02; done; sleep 0.15; echo b1; touch b-said
  - {id: c, needs: [a, b], retry: {attempts: 2, delay: 0}, run: 'echo c$RERAIL_ATTEMPT; test $RERAIL_ATTEMPT = 2'}
"""


@pytest.mark.scenario("V3")
def test_logs_are_printed_in_the_order_of_time(project: Project) -> None:
    project.pipeline(TALKING)
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "2", check=0)

    assert project.rerail("logs", "r", check=0).stdout.split("\n") == [
        "a | a1",
        "b | b1",
        "a | a2",
        "c | c1",
        "c | c2",
        "",
    ]
    assert project.rerail("logs", "r", "a", check=0).stdout == "a1\na2\n"
    assert project.rerail("logs", "r", "c", "--attempt", "2", check=0).stdout == "c2\n"
    assert "run r has no step 'x'" in project.rerail("logs", "r", "x", check=2).stderr
    assert "needs a STEP" in project.rerail("logs", "r", "--attempt", "1", check=2).stderr


@pytest.mark.scenario("V3")
def test_logs_of_a_killed_run_lose_nothing_that_was_written(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'echo one; echo two; touch said; sleep 60'}]")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    log = project.run_dir("r") / "logs" / "a.1.out"
    eventually(lambda: log.exists() and log.read_text() == "one\ntwo\n", "both lines are in the log")
    process.send_signal(signal.SIGKILL)
    process.communicate()

    assert project.rerail("logs", "r", check=0).stdout == "a | one\na | two\n"


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


@pytest.mark.scenario("F2")
def test_delete_refuses_what_lives_and_does_not_guess(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER; sleep 60'}]")
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "it runs")
    assert "run r is running" in project.rerail("delete", "r", "--yes", check=4).stderr
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "not a terminal: pass --yes" in project.rerail("delete", "r", check=2, stdin=subprocess.DEVNULL).stderr
    project.rerail("delete", "r", "--yes", check=0)

    assert not project.run_dir("r").exists()
    assert project.json("list") == []


@pytest.mark.scenario("F2")
def test_prune_takes_what_is_done_with_and_nothing_else(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]", "good.yaml")
    project.pipeline("steps: [{id: a, run: 'exit 1'}]", "bad.yaml")
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER; sleep 60'}]", "long.yaml")
    for number in range(3):
        project.rerail("run", "good.yaml", "--id", f"good-{number}", check=0)
    project.rerail("run", "bad.yaml", "--id", "failed", check=1)
    before = project.state_digest()
    project.rerail("prune", "--keep", "0", "--dry-run", check=0)
    assert project.state_digest() == before
    process = project.spawn("run", "long.yaml", "--id", "live")
    eventually(lambda: project.ledger() == ["a"], "it runs")
    planned = project.rerail("prune", "--keep", "0", "--dry-run", "--json", check=0)
    assert sorted(row["run_id"] for row in json.loads(planned.stdout)) == ["good-0", "good-1", "good-2"]
    assert all(row["bytes"] > 0 for row in json.loads(planned.stdout))
    assert json.loads(project.rerail("prune", "--older-than", "1h", "--json", check=0).stdout) == []
    project.rerail("prune", "--keep", "4", check=0)  # live, failed, good-2, good-1
    assert sorted(row["run_id"] for row in project.json("list")) == ["failed", "good-1", "good-2", "live"]
    project.rerail("prune", "--keep", "0", "--status", "failed", "--status", "running", check=0)
    assert sorted(row["run_id"] for row in project.json("list")) == ["good-1", "good-2", "live"]
    process.send_signal(signal.SIGTERM)
    process.communicate()
    project.rerail("prune", check=2)
    project.rerail("prune", "--older-than", "soon", check=2)


def test_prune_does_not_destroy_what_only_looks_well(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    journal = project.run_dir("r") / "journal-0001.jsonl"
    status, data = journal.stat(), bytearray(journal.read_bytes())
    data[300] ^= 1
    journal.write_bytes(data)
    os.utime(journal, ns=(status.st_atime_ns, status.st_mtime_ns))  # as bits rot
    pruned = project.rerail("prune", "--keep", "0", check=0)

    assert "run r stays" in pruned.stderr
    assert project.run_dir("r").exists()


@pytest.mark.scenario("V1", "V2")
def test_the_end_of_a_long_log_is_kept(project: Project) -> None:
    project.pipeline(
        "steps: [{id: a, run: \"head -c 33554430 /dev/zero | tr '\\\\0' x; echo; echo CONTEXT; echo LAST\"}]"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    logs = project.run_dir("r") / "logs"

    assert sum(path.stat().st_size for path in logs.glob("a.1.out.rest*")) > 16_000_000
    assert project.rerail("logs", "r", "a").stdout.endswith("ONTEXT\nLAST\n")  # a part may begin in the middle of a word


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
    assert any(row["verdict"] == "warning" and "kept in memory" in row["found"] for row in shared)
    assert not Path("/dev/shm/rerail-doctor-test").exists()


def test_init_writes_a_pipeline_that_runs_and_never_overwrites(project: Project) -> None:
    project.rerail("init", check=0)
    text = (project.root / "pipeline.yaml").read_text()
    assert "nothing written" in project.rerail("init", check=2).stderr
    assert (project.root / "pipeline.yaml").read_text() == text
    project.rerail("check", "pipeline.yaml", check=0)
    (project.root / "pipeline.yaml").write_text(text.replace("sleep 1", "sleep 0"))
    project.rerail("run", "pipeline.yaml", "-p", "who=you & me", check=0)

    assert (project.root / "out" / "published.txt").read_text().splitlines()[0] == "part 1 for you & me"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_runs_and_steps(project: Project, shell: str) -> None:
    project.pipeline("steps: [{id: compile, run: 'true'}]")
    project.rerail("run", "pipeline.yaml", "--id", "nightly-1", check=0)
    assert "_RERAIL_COMPLETE" in project.rerail("completion", shell, check=0).stdout

    def completed(*words: str) -> str:
        env = {"_RERAIL_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        code = "import sys; sys.argv[0] = 'rerail'; from rerail.cli.main import main; main()"
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, cwd=project.root, env={**project.env, **env}, capture_output=True, text=True
        ).stdout

    assert "plain,resume" in completed("rerail", "res")
    assert "plain,nightly-1" in completed("rerail", "show", "nigh")
    assert "plain,compile" in completed("rerail", "logs", "nightly-1", "co")
    assert "plain,compile" in completed("rerail", "mark", "last", "co")


def test_the_demo_kills_and_resumes(project: Project) -> None:
    done = project.rerail("demo", check=0)

    for words in ("kill -9", "rerun  build   interrupted during attempt 1", "build twice"):
        assert words in done.stderr
    assert "crashed" in done.stdout
    assert list(project.root.iterdir()) == []


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


# Where output goes


def _has(project: Project, entries: int) -> bool:
    return len(project.ledger()) == entries


@pytest.mark.scenario("G6")
def test_what_happens_to_our_output_does_not_happen_to_the_run(project: Project) -> None:
    steps = "".join(f"  - {{id: s{n}, run: 'echo s{n} >> $LEDGER'}}\n" for n in range(8))
    project.pipeline("steps:\n" + steps)
    rerail = " ".join(RERAIL)
    for number, shell in enumerate(
        [
            f"{rerail} run pipeline.yaml --json | head -1 >/dev/null",
            f"{rerail} run pipeline.yaml >&- 2>&-",
            f"{rerail} run pipeline.yaml --json >/dev/full 2>/dev/full",
            f"{rerail} run pipeline.yaml 2>/dev/full",
        ],
        1,
    ):
        subprocess.run(["bash", "-c", shell], cwd=project.root, env=project.env, check=True, timeout=120)
        eventually(partial(_has, project, 8 * number), "all steps ran")  # `head` is gone before the run is
    eventually(lambda: {row["status"] for row in project.json("list")} == {"completed"}, "all are completed")


@pytest.mark.scenario("J16")
def test_github_gets_groups_and_annotations_and_no_commands_from_steps(project: Project) -> None:
    project.pipeline(
        "steps:\n  - {id: a, run: 'echo hello; echo ::set-output name=x::y'}\n  - {id: b, run: 'echo 50% >&2; exit 3'}\n"
    )
    project.env |= {"CI": "true", "GITHUB_ACTIONS": "true"}
    lines = project.rerail("run", "pipeline.yaml", check=1).stderr.splitlines()

    start = next(at for at, line in enumerate(lines) if line.startswith("::group::completed"))
    assert lines[start + 1].startswith("::stop-commands::")
    assert lines[start + 2 : start + 4] == ["hello", "::set-output name=x::y"]
    assert lines[start + 4] == f"::{lines[start + 1].removeprefix('::stop-commands::')}::"
    assert lines[start + 5] == "::endgroup::"
    assert "::error title=step b failed,file=pipeline.yaml,line=3::exited with code 3" in lines


def test_colour_and_quiet(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'true'}]")
    project.env["FORCE_COLOR"] = "1"
    assert "\033[32m" in project.rerail("run", "pipeline.yaml", check=0).stderr
    assert "\033[32m" in project.rerail("list", check=0).stdout
    project.env["NO_COLOR"] = "1"
    assert "\033" not in project.rerail("run", "pipeline.yaml", check=0).stderr + project.rerail("list").stdout
    assert project.rerail("run", "pipeline.yaml", "-q", check=0).stderr == ""
    assert "run started by process" in project.rerail("run", "pipeline.yaml", "-v", check=0).stderr
    assert os.environ.get("LEDGER") is None
