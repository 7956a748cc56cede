"""Two live runs never write one path: the second is refused before it starts, and nobody seals what another one wrote."""

from __future__ import annotations

import subprocess

import pytest

from tests.cli.screen import screen
from tests.conftest import Project, eventually

BOOK = """
params: {topic: {required: true}}
steps:
  - id: write
    run: |
      echo ${{ params.topic }} > book.txt; echo started-${{ params.topic }} >> "$LEDGER"
      until test -e go-${{ params.topic }}; do sleep 0.02; done
    artifacts: [book.txt]
  - {id: publish, run: 'cp book.txt pub-${{ params.topic }}.txt'}
"""


def start(project: Project, topic: str, *more: str) -> subprocess.Popen[str]:
    """A run whose step is under way."""
    process = project.spawn("run", "pipeline.yaml", "-p", f"topic={topic}", "--id", topic, *more)
    eventually(lambda: f"started-{topic}" in project.ledger() or process.poll() is not None, f"{topic} starts")
    return process


def finish(project: Project, process: subprocess.Popen[str], topic: str) -> tuple[int, str]:
    (project.root / f"go-{topic}").touch()
    _, err = process.communicate(timeout=240)
    return process.returncode, err


def test_a_second_run_that_would_write_the_same_path_is_refused(project: Project) -> None:
    project.pipeline(BOOK)
    sun = start(project, "sun")

    refused = project.rerail("run", "pipeline.yaml", "-p", "topic=sea", "--id", "sea", check=4)

    assert "run sun is live and may write book.txt (step write)" in refused.stderr
    assert "--allow-concurrent" in refused.stderr
    assert not project.run_dir("sea").exists()
    on_screen = screen(project, "run", "pipeline.yaml", "--fresh", "-p", "topic=sea", "--id", "sea").end()
    assert "run sun is live" in on_screen
    assert "publish" not in on_screen, "a run that is refused is not drawn"
    assert finish(project, sun, "sun")[0] == 0
    assert (project.root / "pub-sun.txt").read_text() == "sun\n"
    (project.root / "go-sea").touch()
    project.rerail("run", "pipeline.yaml", "-p", "topic=sea", "--id", "sea", check=0)


def test_a_run_that_was_killed_and_deleted_claims_nothing(project: Project) -> None:
    project.pipeline(BOOK)
    sun = start(project, "sun")
    sun.kill()
    sun.communicate()
    project.rerail("delete", "sun", "--yes", check=0)
    (project.root / "go-sea").touch()

    project.rerail("run", "pipeline.yaml", "-p", "topic=sea", "--id", "sea", check=0)


def test_paths_that_differ_by_a_param_do_not_meet(project: Project) -> None:
    project.pipeline(
        BOOK.replace("[book.txt]", '["book-${{ params.topic }}.txt"]').replace("book.txt", "book-${{ params.topic }}.txt")
    )
    sun = start(project, "sun")
    sea = start(project, "sea")
    assert finish(project, sea, "sea")[0] == 0
    assert finish(project, sun, "sun")[0] == 0


def test_one_of_many_that_start_at_once_goes_on(project: Project) -> None:
    project.pipeline(BOOK.replace("go-${{ params.topic }}", "go"))
    starting = [project.spawn("run", "pipeline.yaml", "-p", f"topic={n}", "--id", f"r{n}") for n in range(6)]
    eventually(lambda: sum(one.poll() == 4 for one in starting) == 5, "five are refused")
    (project.root / "go").touch()
    codes = sorted(one.wait(timeout=240) for one in starting)
    assert codes == [0, 4, 4, 4, 4, 4]
    assert len(project.ledger()) == 1


@pytest.mark.parametrize("how", ["resume", "fork", "dlq"])
def test_that_goes_for_runs_that_go_on_too(project: Project, how: str) -> None:
    project.pipeline(BOOK + "  - {id: m, map: {over: [a], max_failures: 1}, steps: [{run: 'test -e calm'}]}\n")
    (project.root / "go-sun").touch()
    project.rerail("run", "pipeline.yaml", "-p", "topic=sun", "--id", "sun", check=0)
    sea = start(project, "sea")
    command = {
        "resume": ("resume", "sun", "--from", "publish"),
        "fork": ("fork", "sun", "--from", "publish", "--id", "moon"),
        "dlq": ("dlq", "retry", "sun"),
    }[how]

    refused = project.rerail(*command, check=4)

    assert "run sea is live and may write book.txt" in refused.stderr
    assert (project.root / "book.txt").read_text() == "sea\n"  # nothing was restored over it
    assert finish(project, sea, "sea")[0] == 0


def test_a_run_that_was_killed_claims_nothing(project: Project) -> None:
    project.pipeline(BOOK)
    sun = start(project, "sun")
    sun.kill()
    sun.communicate()
    (project.root / "go-sea").touch()
    project.rerail("run", "pipeline.yaml", "-p", "topic=sea", "--id", "sea", check=0)
    (project.root / "go-sun").touch()
    project.rerail("resume", "sun", check=0)
    assert (project.root / "pub-sun.txt").read_text() == "sun\n"
    assert (project.root / "pub-sea.txt").read_text() == "sea\n"


@pytest.mark.parametrize("first_to_end", ["sun", "sea"])
def test_who_insists_does_not_seal_what_another_run_wrote(project: Project, first_to_end: str) -> None:
    """Both ran at the same time and wrote one path: nobody can tell whose it is, so nobody claims it."""
    project.pipeline(BOOK)
    running = {"sun": start(project, "sun")}
    running["sea"] = start(project, "sea", "--allow-concurrent")
    order = [first_to_end, *({"sun", "sea"} - {first_to_end})]
    for topic in order:
        code, err = finish(project, running[topic], topic)
        other = "sea" if topic == "sun" else "sun"
        assert code == 1, err
        assert f"book.txt may be that of run {other}" in err
    sealed = [project.json("show", topic)["steps"][0].get("artifacts", []) for topic in order]
    assert sealed == [[], []]
    for topic in order:  # one after the other each makes its own
        project.rerail("resume", topic, check=0)
        assert (project.root / f"pub-{topic}.txt").read_text() == f"{topic}\n"


def test_what_a_run_wrote_before_it_was_killed_is_not_sealed_by_one_that_ran_beside_it(project: Project) -> None:
    project.pipeline(BOOK)
    sun = start(project, "sun")
    sea = start(project, "sea", "--allow-concurrent")
    sea.kill()
    sea.communicate()
    project.pipeline("steps: [{id: w, write: {path: elsewhere.txt, content: x}}]", "other.yaml")
    project.rerail("run", "other.yaml", check=0)  # whoever comes next tidies up what dead runs claimed

    code, err = finish(project, sun, "sun")

    assert code == 1, err
    assert "book.txt may be that of run sea" in err


def test_items_of_a_map_are_claimed_by_how_their_paths_begin_and_end(project: Project) -> None:
    project.pipeline("""
params: {kind: {default: a}}
steps:
  - {id: m, map: {over: [x]}, steps: [{run: 'echo 1 > out-${{ item }}.${{ params.kind }}; echo m >> "$LEDGER"; until test -e go; do sleep 0.02; done', artifacts: ["out-${{ item }}.md"]}]}
""")
    live = project.spawn("run", "pipeline.yaml", "--id", "one")
    eventually(project.ledger, "the item runs")
    project.pipeline('steps: [{id: w, write: {path: out-x.md, content: "2"}}]', "other.yaml")
    project.rerail("run", "other.yaml", check=4)
    project.pipeline('steps: [{id: w, write: {path: out-x.txt, content: "2"}}]', "third.yaml")
    project.rerail("run", "third.yaml", check=0)
    (project.root / "go").touch()
    live.communicate(timeout=240)
