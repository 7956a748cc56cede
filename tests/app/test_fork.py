"""A fork shares what came before a step, and runs again only what reads what changed."""

from __future__ import annotations

from tests.artifacts.pipelines import producer
from tests.conftest import Project
from tests.pipelines import ledger, pipeline

NOTE = 'echo "$RERAIL_STEP" >> "$LEDGER"'


PIPELINE = f"""\
params: {{title: {{default: T}}, level: {{default: draft}}}}
steps:
  - id: gather
    run: |
      {NOTE}
      echo facts > facts.txt
      echo '{{"cost_usd": 1.5}}' >> "$RERAIL_METRICS"
    artifacts: [facts.txt]
  - id: title
    run: |
      {NOTE}
      echo ${{{{ params.title }}}} > title.txt
    artifacts: [title.txt]
  - id: write
    run: |
      {NOTE}
      cat title.txt facts.txt > text.txt
    artifacts: [text.txt]
  - id: print
    run: |
      {NOTE}
      echo ${{{{ params.level }}}} | cat - text.txt > print.txt
    artifacts: [print.txt]
"""


def started(project: Project) -> None:
    project.pipeline(PIPELINE)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.ledger_file.write_text("")


def test_a_fork_shares_everything_before_its_step(project: Project) -> None:
    started(project)
    before = project.state_digest()
    project.rerail("fork", "r", "--from", "print", "--dry-run", check=0)
    assert project.state_digest() == before

    project.rerail("fork", "r", "--from", "print", "--id", "f", "-p", "level=final", check=0)

    assert project.ledger() == ["print"]
    assert (project.root / "print.txt").read_text() == "final\nT\nfacts\n"
    shown = project.json("show", "f")
    assert (shown["status"], shown["params"]["level"], shown["total_cost_usd"]) == ("completed", "final", 0)
    assert (shown["parent"], project.json("show", "r")["parent"]) == ("r", "")
    assert "fork of   r\n" in project.rerail("show", "f", check=0).stdout
    assert project.json("show", "r")["total_cost_usd"] == 1.5
    assert "inherited    gather from run r" in project.rerail("history", "f", check=0).stdout


def test_a_changed_param_runs_its_readers_again_and_the_rest_only_if_they_came_out_different(project: Project) -> None:
    started(project)

    done = project.rerail("fork", "r", "--from", "print", "-p", "title=Other", check=0)

    assert "params.title is another one than in r" in done.stderr
    assert project.ledger() == ["title", "write", "print"]
    assert (project.root / "print.txt").read_text() == "draft\nOther\nfacts\n"


def test_a_fork_stops_where_it_is_asked_to(project: Project) -> None:
    started(project)

    project.rerail("fork", "r", "--from", "title", "--until", "write", "--id", "f", check=0)

    assert project.ledger() == ["title", "write"]
    assert project.json("show", "f")["status"] == "paused"


def test_a_fork_heals_what_its_parent_made(project: Project) -> None:
    started(project)
    (project.root / "facts.txt").unlink()

    project.rerail("fork", "r", "--from", "print", check=0)

    assert project.ledger() == ["print"]
    assert (project.root / "facts.txt").read_text() == "facts\n"


def test_a_fork_stands_alone_and_can_be_forked(project: Project) -> None:
    started(project)
    project.rerail("fork", "r", "--from", "write", "--id", "f", check=0)
    project.rerail("delete", "r", "--yes", check=0)
    project.ledger_file.write_text("")

    project.rerail("fork", "f", "--from", "print", "--id", "g", check=0)
    assert project.ledger() == ["print"]
    (project.root / "facts.txt").unlink()
    project.rerail("resume", "g", check=0)
    assert project.ledger() == ["print"]


def test_what_a_fork_cannot_be_asked(project: Project) -> None:
    started(project)
    assert "fork needs --from STEP" in project.rerail("fork", "r", check=2).stderr
    assert "no step `nope`" in project.rerail("fork", "r", "--from", "nope", check=2).stderr
    assert "no run 'x'" in project.rerail("fork", "x", "--from", "print", check=3).stderr
    assert "exists already" in project.rerail("fork", "r", "--from", "print", "--id", "r", check=2).stderr
    assert "no param `nope`" in project.rerail("fork", "r", "--from", "print", "-p", "nope=1", check=2).stderr
    assert project.json("list")[0]["run_id"] == "r"


def test_a_fork_that_is_killed_is_resumed_like_any_run(project: Project) -> None:
    project.pipeline(PIPELINE.replace("> print.txt", "> print.txt; test -e ok"))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.ledger_file.write_text("")
    project.rerail("fork", "r", "--from", "write", "--id", "f", check=1)
    (project.root / "ok").touch()

    project.rerail("resume", "f", check=0)

    assert project.ledger() == ["write", "print", "print"]


def test_a_fork_does_not_make_stale_steps_fresh(project: Project) -> None:
    text = pipeline(
        producer("a", "echo one > a.txt", "artifacts: [a.txt]"),
        producer("b", "cat a.txt > b.txt", "artifacts: [b.txt]"),
        producer("c", "cat b.txt"),
    )
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.pipeline(text.replace("one", "two"))
    project.rerail("resume", "r", "--until", "a", check=0)
    project.ledger_file.write_text("")

    project.rerail("fork", "r", "--from", "c", "--id", "f", check=0)

    assert project.ledger() == ["b", "c"]
    assert (project.root / "b.txt").read_text() == "two\n"


def test_a_fork_shares_steps_declared_before_what_they_need(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("z", "cat y.txt > z.txt", "needs: [y]", "artifacts: [z.txt]"),
            producer("y", "echo Y > y.txt", "needs: []", "artifacts: [y.txt]"),
            producer("last", "cat z.txt", "needs: [z]"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.ledger_file.write_text("")

    project.rerail("fork", "r", "--from", "last", check=0)

    assert project.ledger() == ["last"]


def test_a_fork_of_parallel_writers_keeps_the_owner(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("a", "while ! test -e sealed; do sleep 0.01; done; echo from-a > x", "needs: []", "artifacts: [x]"),
            producer("b", "echo from-b-b > x", "needs: []", "artifacts: [x]"),
            producer("after-b", "touch sealed", "needs: [b]"),
            producer("c", "cat x > c.txt", "needs: [a, after-b]", "artifacts: [c.txt]"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "3", check=0)
    project.ledger_file.write_text("")

    project.rerail("fork", "r", "--from", "c", check=0)

    assert (project.root / "x").read_text() == "from-a\n"
    assert project.ledger() == ["c"]


def test_a_fork_shares_allowed_failures_and_skipped_steps(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("a", "exit 3", "allow_failure: true", "idempotent: false"),
            producer("s", "true", "when: 'false'"),
            producer("b", "echo b > b.txt", "artifacts: [b.txt]"),
            producer("c", "true"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.ledger_file.write_text("")

    project.rerail("fork", "r", "--from", "c", check=0)

    assert project.ledger() == ["c"]


def test_a_fork_that_is_cut_off_still_shares(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("pay", "echo receipt > r.txt", "idempotent: false", "artifacts: [r.txt]"),
            producer("end", "test -e ok"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    (project.root / "r.txt").unlink()
    first = project.spawn("fork", "r", "--from", "end", "--id", "f")
    assert first.stderr is not None
    for line in first.stderr:  # as soon as it speaks, it shares
        if line.startswith("rerail: run f, a fork of r"):
            break
    first.kill()
    first.communicate()

    project.rerail("resume", "f", check=0)

    assert project.ledger().count("pay") == 1


def test_a_fork_of_a_map_that_lost_a_file_has_every_item(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [a, b], parallel: 1}
    steps:
      - run: echo "made ${{ item }}" >> "$LEDGER"; echo x > out-${{ item }}
        artifacts: [{path: "out-${{ item }}", keep: false}]
  - {id: red, run: 'echo "red ${{ steps.m.outputs.completed }} of ${{ steps.m.outputs.total }}" >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.rerail("fork", "r", "--from", "red", "--id", "whole", check=0)
    assert ledger(project)[3:] == ["red 2 of 2"]
    (project.root / "out-a").unlink()
    project.ledger_file.write_text("")
    project.rerail("fork", "r", "--from", "red", "--id", "f", check=0)

    assert ledger(project) == ["made a", "made b", "red 2 of 2"]
    assert project.json("list")[0]["items_done"] == 2


def test_a_fork_outlives_its_parent(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: m, map: {over: [a, b]}, steps: [{run: 'echo v=${{ item }} >> $RERAIL_OUTPUT'}]}
  - {id: z, run: 'cat ${{ steps.m.outputs.results_file }} >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.rerail("fork", "r", "--from", "z", "--id", "f", check=0)
    project.rerail("delete", "r", "--yes", check=0)
    project.rerail("mark", "f", "z", "pending", check=0)
    project.rerail("resume", "f", check=0)

    assert len(ledger(project)) == 6
