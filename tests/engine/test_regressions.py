"""Defects that attack and review found once, each by the shortest way to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.conftest import RERAIL, Project, eventually
from tests.pipelines import note, pipeline, step


def kill_in(project: Project, name: str, *arguments: str) -> None:
    """Run until that step has said so in the ledger once more, and kill."""
    before = project.ledger().count(name)
    process = project.spawn(*arguments)
    eventually(lambda: project.ledger().count(name) == before + 1, f"{name} runs")
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_mark_is_final_even_if_the_step_was_edited_or_an_ancestor_is_newer(project: Project) -> None:
    def text(first: str, deploy: str) -> str:
        return pipeline(
            step("a", note(first)), step("deploy", note(deploy), idempotent="false"), step("c", note("test -e fixed"))
        )

    project.pipeline(text("true", "true"))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.pipeline(text("true", "test -e go || sleep 60"))
    kill_in(project, "deploy", "resume", "r")
    project.rerail("resume", "r", check=5)
    project.pipeline(text("echo newer", "test -e go || sleep 60"))
    project.rerail("resume", "r", check=5)
    project.rerail("mark", "r", "deploy", "completed", check=0)
    (project.root / "fixed").touch()
    ran = project.ledger().count("deploy")
    project.rerail("resume", "r", check=0)

    assert project.ledger().count("deploy") == ran


def test_mark_works_on_a_crashed_run_at_once(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("sleep 60"), idempotent="false"), step("b", note())))
    kill_in(project, "a", "run", "pipeline.yaml", "--id", "r")
    project.rerail("mark", "r", "a", "completed", check=0)
    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["a", "b"]


def test_marking_a_step_of_a_completed_run_makes_it_resumable(project: Project) -> None:
    project.pipeline(pipeline(step("a", note()), step("b", note())))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.rerail("mark", "r", "b", "pending", check=0)
    assert project.json("list")[0]["status"] == "interrupted"
    project.rerail("resume", check=0)

    assert project.ledger() == ["a", "b", "b"]


@pytest.mark.scenario("M1")
def test_resuming_a_copy_leaves_the_live_original_alone(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("while ! test -e ../go; do sleep 0.02; done"))))
    original = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    copy = project.root.parent / "copy"
    shutil.copytree(project.root, copy, symlinks=True, ignore=shutil.ignore_patterns("*.rerail-tmp"))
    second = subprocess.Popen([*RERAIL, "resume", "r"], cwd=copy, env=project.env, stderr=subprocess.PIPE)
    eventually(lambda: project.ledger() == ["a", "a"], "the copy runs")
    (project.root.parent / "go").touch()
    second.communicate()
    original.communicate()

    assert (original.returncode, second.returncode) == (0, 0)


def test_money_is_counted_whatever_happens(project: Project) -> None:
    spend = """echo '{"cost_usd": 5}' >> $RERAIL_METRICS\n"""
    project.pipeline(
        pipeline(
            step("cut", spend + note("test -e go || sleep 60")),
            step("bad-output", spend + "echo nonsense >> $RERAIL_OUTPUT", allow_failure="true"),
            step("huge", "echo '{\"cost_usd\": 1e308}' >> $RERAIL_METRICS\n" * 2 + spend),
            step("fails", spend + "exit 1", retry="{attempts: 2, delay: 0}", allow_failure="true"),
        )
    )
    kill_in(project, "cut", "run", "pipeline.yaml", "--id", "r")
    (project.root / "go").touch()
    done = project.rerail("resume", "r", check=0)

    assert project.json("show", "r")["total_cost_usd"] == 30
    assert "huge: $RERAIL_METRICS line 1: cost_usd is not a number that can be counted" in done.stderr
    (project.run_dir("r") / "checkpoint.json").unlink()
    assert project.json("show", "r")["total_cost_usd"] == 30


def test_an_allowed_failure_is_tried_again_when_it_was_edited_or_is_no_longer_allowed(project: Project) -> None:
    def text(script: str, allowed: str) -> str:
        return pipeline(
            step("a", note(script), allow_failure=allowed), step("b", note()), step("c", note("test -e fixed"))
        )

    project.pipeline(text("exit 1", "true"))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert "reuse  a" in project.rerail("resume", "--dry-run").stderr
    project.pipeline(text("exit 1", "false"))
    assert "rerun  a  failed, and is no longer allowed to fail" in project.rerail("resume", "--dry-run").stderr
    project.pipeline(text("exit 0", "true"))
    assert "rerun  a  definition changed" in project.rerail("resume", "--dry-run").stderr


def test_a_retry_on_the_way_does_not_make_a_product_different(project: Project) -> None:
    def text(script: str) -> str:
        return pipeline(
            step("a", note(script), retry="{attempts: 3, delay: 0}"), step("b", note()), step("c", note("test -e fixed"))
        )

    project.pipeline(text("echo x=1 >> $RERAIL_OUTPUT"))
    project.rerail("run", "pipeline.yaml", check=1)
    project.pipeline(text("test $RERAIL_ATTEMPT = 3\necho x=1 >> $RERAIL_OUTPUT"))
    (project.root / "fixed").touch()
    project.rerail("resume", check=0)

    assert project.ledger() == ["a", "b", "c", "a", "a", "c"]


@pytest.mark.scenario("G2", "H4")
def test_the_second_signal_kills_at_once(project: Project) -> None:
    # So patient that only the second signal can end it.
    patient = "from rerail.engine import shutdown; shutdown.STOP_GRACE = 3600.0; import rerail.__main__"
    deaf = "trap '' INT TERM\n" + note("while ! test -e again; do sleep 0.1; done")
    project.pipeline(pipeline(step("first", note()), step("a", deaf)))
    process = project.spawn("run", "pipeline.yaml", "--id", "r", program=(sys.executable, "-c", patient))
    eventually(lambda: project.ledger() == ["first", "a"], "a runs")
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert any("stopping steps" in line for line in process.stderr)  # it has heard the first
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)

    assert process.returncode == 143
    assert project.json("show", "r")["status"] == "interrupted"
    (project.root / "again").touch()
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["first", "a", "a"]


# How soon a snapshot is taken depends on what the one before it cost.
UNTIL_ONE_IS_KEPT = "while test $(ls .rerail/runs/r/history | wc -l) -lt 1; do sleep 0.02; done"


def test_a_long_step_does_not_wear_out_the_history(project: Project) -> None:
    wait = note("while ! test -e go; do sleep 0.02; done")
    before_it = [step("quick", "true"), step("second", "true"), step("third", UNTIL_ONE_IS_KEPT)]
    project.pipeline(pipeline(*before_it, step("a", wait), top="checkpoint: {interval: 0.1s, history: 1}"))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    checkpoint = project.run_dir("r") / "checkpoint.json"
    seen: list[object] = []

    def progress_was_saved(times: int) -> bool:
        progress = json.loads(checkpoint.read_text())["steps"][-1].get("progress")
        if progress and progress not in seen:
            seen.append(progress)
        return len(seen) >= times

    def kept() -> list[str]:
        return sorted(path.name for path in (project.run_dir("r") / "history").iterdir())

    eventually(lambda: progress_was_saved(2), "a snapshot that says how far it is and nothing else that is new")
    before = eventually(lambda: len(kept()) == 1 and kept(), "one older snapshot that is kept")
    eventually(lambda: progress_was_saved(4), "two more")
    after = kept()
    (project.root / "go").touch()
    process.communicate()

    assert after == before


@pytest.mark.scenario("F11", "M10")
@pytest.mark.parametrize("what", ["everything", "lock"])
def test_state_that_is_removed_mid_run_stops_the_run(project: Project, what: str) -> None:
    remove = "rm -rf .rerail" if what == "everything" else "rm .rerail/runs/r/lock"
    project.pipeline(pipeline(step("a", note(remove)), step("b", note())))
    stopped = project.rerail("run", "pipeline.yaml", "--id", "r", check=6)

    assert "was removed or replaced while the run was going on" in stopped.stderr
    assert project.ledger() == ["a"]


@pytest.mark.scenario("F11")
@pytest.mark.parametrize(
    "replace",
    [
        "mv lock lock.old",
        "ln lock keep; rm lock",
        "cp lock new; mv new lock",
        "cd ..; cp -r r copy; mv r old; mv copy r",
    ],
)
def test_two_owners_of_one_run_do_not_both_go_on(project: Project, replace: str) -> None:
    """Whoever had the lock that has lost its name stops before it records another word."""
    project.pipeline(pipeline(step("a", note("until test -e go; do sleep 0.02; done")), step("b", note())))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: project.ledger() == ["a"], "a runs")
    subprocess.run(["sh", "-c", replace], cwd=project.run_dir("r"), check=True)
    (project.root / "go").touch()
    _, said = process.communicate(timeout=120)

    assert process.returncode == 6
    assert "was removed or replaced while the run was going on" in said
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["a", "a", "b"]
    project.rerail("verify", "r", check=0)


@pytest.mark.scenario("E5")
def test_a_journal_that_is_lost_with_its_checkpoint_is_missed(project: Project) -> None:
    until_seen = """until grep -qs '"last_completed_step": "a"' .rerail/runs/r/%s; do sleep 0.02; done"""
    saved, kept = until_seen % "checkpoint.json", until_seen % "history/*"
    project.pipeline(
        pipeline(step("a", note()), step("b", note(saved)), step("c", note(kept)), step("d", note("exit 1")))
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    for path in (*project.run_dir("r").glob("journal-*"), project.run_dir("r") / "checkpoint.json"):
        path.unlink()

    assert "repair" in project.rerail("resume", "r", check=6).stderr
    project.rerail("repair", "r", check=0)
    project.rerail("resume", "r", check=1)
    assert project.ledger().count("a") == 1


def test_repair_keeps_what_follows_the_checkpoint_and_asks_about_what_it_cannot_prove(project: Project) -> None:
    steps = [step(f"s{number}", note()) for number in range(12)]
    project.pipeline(pipeline(*steps, step("pay", note("sleep 60"), idempotent="false")))
    process = project.spawn("run", "pipeline.yaml", "--id", "r")
    checkpoint = project.run_dir("r") / "checkpoint.json"
    eventually(lambda: checkpoint.exists() and '"next_step": "pay"' in checkpoint.read_text(), "the checkpoint caught up")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    journal = project.run_dir("r") / "journal-0001.jsonl"
    data = bytearray(journal.read_bytes())
    data[900] ^= 1
    journal.write_bytes(data)
    project.rerail("repair", "r", check=0)
    paused = project.rerail("resume", "r", check=5)

    assert "the outcome of pay is unknown" in paused.stderr
    assert len(project.ledger()) == 13


@pytest.mark.scenario("J15")
def test_a_damaged_frozen_pipeline_blocks_nobody(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("exit 1"))))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.run_dir("r") / "pipeline.yaml").write_text("rubbish")
    assert project.json("show", "r")["status"] == "failed"
    project.rerail("resume", "r", check=1)

    assert (project.run_dir("r") / "pipeline-0002.yaml").read_text() == (project.root / "pipeline.yaml").read_text()


@pytest.mark.scenario("E3", "M8")
def test_run_json_is_healed_from_the_journal_and_strangers_in_runs_are_ignored(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("exit 1"))))
    project.rerail("run", "pipeline.yaml", "--id", "old", check=1)
    project.rerail("run", "pipeline.yaml", "--id", "new", check=1)
    (project.run_dir("new") / "run.json").write_text("{")
    (project.root / ".rerail" / "runs" / "Thumbs.db").touch()
    resumed = project.rerail("resume", check=1)

    assert "run new of pipeline" in resumed.stderr
    assert "run.json is damaged" in resumed.stderr
    assert '"run_id": "new"' in (project.run_dir("new") / "run.json").read_text()
    assert project.rerail("resume", "last", check=1)


def test_a_damaged_run_of_another_pipeline_does_not_block_this_one(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("exit 1"))))
    project.pipeline(pipeline(step("b", note())), "other.yaml")
    project.rerail("run", "pipeline.yaml", "--id", "bad", check=1)
    journal = project.run_dir("bad") / "journal-0001.jsonl"
    journal.write_bytes(b"x" + journal.read_bytes()[1:])

    project.rerail("run", "other.yaml", "--resume", check=0)
    project.rerail("run", "pipeline.yaml", "--resume", check=6)


@pytest.mark.scenario("L10")
def test_params_are_compared_as_what_they_are(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("exit 1")), top="params: {flag: {type: boolean, default: false}, n: 3}"))
    project.rerail("run", "pipeline.yaml", "-p", "flag=true", "-p", "n=4", check=1)
    project.rerail("run", "pipeline.yaml", "--resume", "-p", "flag=true", "-p", "n=4", check=1)

    assert len(project.json("list")) == 1


def test_bytes_that_are_no_text_are_refused_by_name(project: Project) -> None:
    project.pipeline(pipeline(step("a", note()), top="params: {x: ''}"))
    done = subprocess.run(
        [*(os.fsencode(word) for word in RERAIL), b"run", b"pipeline.yaml", b"-p", b"x=\xff"],
        cwd=project.root,
        env=project.env,
        capture_output=True,
        check=False,
    )

    assert done.returncode == 2
    assert b"must be UTF-8" in done.stderr


def test_very_long_intervals_and_time_limits_are_no_problem(project: Project) -> None:
    project.pipeline(pipeline(step("a", note(), timeout="9999999h"), top="checkpoint: {interval: 99999h}"))
    project.rerail("run", "pipeline.yaml", check=0)


@pytest.mark.scenario("G6")
def test_nobody_reading_our_output_does_not_hold_the_run_up(project: Project) -> None:
    many = [step(f"s{number}", note("exit 0")) for number in range(300)]
    project.pipeline(pipeline(*many))
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--json")  # its pipes are never read
    eventually(lambda: len(project.ledger()) == 300, "all steps ran")
    process.wait()

    assert project.json("list")[0]["status"] == "completed"
    process.communicate()


@pytest.mark.scenario("F15")
def test_reading_beside_a_busy_owner_never_reports_damage(project: Project) -> None:
    from rerail.stores.directory import DirectoryStore

    many = [step(f"s{number}", "exit 0") for number in range(150)]
    project.pipeline(pipeline(*many))
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "-q")
    store = DirectoryStore(str(project.root / ".rerail"))
    eventually((project.run_dir("r") / "checkpoint.json").exists, "the run is there, and its first snapshot")
    reads = 0
    while process.poll() is None:
        assert store.read("r").notices == ()
        list(store.history("r"))
        reads += 1
    process.communicate()

    assert reads > 20


def test_the_torn_end_of_a_journal_is_told_once(project: Project) -> None:
    project.pipeline(pipeline(step("a", note("test -e go || sleep 60")), step("b", note("exit 1"))))
    kill_in(project, "a", "run", "pipeline.yaml", "--id", "r")
    journal = project.run_dir("r") / "journal-0001.jsonl"
    data = journal.read_bytes()
    end = len(data.rstrip(b"\n"))
    journal.write_bytes(data[: end + 1] + b'{"sum":"half a rec' + data[end + 19 :])
    (project.root / "go").touch()

    assert "incomplete" in project.rerail("resume", "r", check=1).stderr
    later = project.rerail("resume", "r", check=1).stderr
    assert "incomplete" not in later
    assert "ignored" not in later
