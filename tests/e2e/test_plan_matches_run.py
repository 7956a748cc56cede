"""A step the plan runs again runs, one it keeps does not: what marks, edits, `--from` and the dead letter queue ask for.

That plan and deeds agree is judged beside every run of every test (tests/plan_oracle.py); here the steps themselves say
in a ledger which of them ran.
"""

from __future__ import annotations

import sys

import pytest

from tests.conftest import Project

ALLOWED = """
steps:
  - {id: a, allow_failure: true, run: 'echo a >> "$LEDGER"; exit 1'}
  - {id: b, run: 'echo b >> "$LEDGER"; test -e go'}
"""


def again(project: Project) -> None:
    """From here on the ledger tells of the next invocation alone."""
    project.ledger_file.write_text("")


def plan_of(project: Project, *options: str) -> dict[str, str]:
    """The decision about each step, as a script reads it."""
    planned = project.json("resume", "r", "--dry-run", *options)
    return {made["step"]: made["decision"] for made in planned["decisions"]}


@pytest.mark.parametrize(
    ("edited", "options", "code"),
    [
        (ALLOWED.replace("exit 1", "true"), (), 0),
        (ALLOWED.replace("allow_failure: true, ", ""), (), 1),
        (ALLOWED, ("--from", "a"), 0),
    ],
    ids=["its script is corrected", "it is no longer allowed", "--from"],
)
def test_a_failure_that_was_allowed_is_run_again_where_the_plan_says_so(
    project: Project, edited: str, options: tuple[str, ...], code: int
) -> None:
    project.pipeline(ALLOWED)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    again(project)
    project.pipeline(edited)
    (project.root / "go").touch()
    assert plan_of(project, *options)["a"] == "rerun"

    project.rerail("resume", "r", *options, check=code)

    assert project.ledger()[0] == "a"
    assert project.json("show", "r")["status"] == ("completed" if code == 0 else "failed")


def test_a_failure_that_is_still_allowed_is_kept(project: Project) -> None:
    project.pipeline(ALLOWED)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    again(project)
    (project.root / "go").touch()

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["b"]


def test_the_clean_up_of_an_allowed_failure_comes_before_it_runs_again(project: Project) -> None:
    text = """
steps:
  - id: a
    allow_failure: true
    run: 'echo a >> "$LEDGER"; exit 1'
    on_failure:
      - run: 'echo clean >> "$LEDGER"; test -e struck || { touch struck; kill -9 $PPID; sleep 60; }'
  - {id: b, run: 'echo b >> "$LEDGER"'}
"""
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "1", check=-9)
    again(project)
    project.pipeline(text.replace("exit 1", "true"))

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["clean", "a", "b"]


NESTED = """
steps:
  - id: l
    loop: {max_iterations: 2, until: loop.iteration >= 2}
    steps: [{id: s, run: 'echo l${{ loop.iteration }} >> "$LEDGER"; echo "v=${{ loop.iteration }}" >> "$RERAIL_OUTPUT"'}]
  - {id: m, needs: [], map: {over: [a, b], parallel: 1}, steps: [{run: 'echo m${{ item }} >> "$LEDGER"'}]}
  - id: g
    needs: []
    map: {over: [a, b], parallel: 1}
    steps:
      - {id: one, run: 'echo one${{ item }} >> "$LEDGER"; echo ${{ item }} > one-${{ item }}', artifacts: ["one-${{ item }}"]}
      - {id: two, run: 'echo two${{ item }} >> "$LEDGER"'}
  - {id: p, needs: [], pipeline: inner.yaml}
  - {id: z, needs: [l], run: 'echo "z-${{ steps.l.outputs.v }}" >> "$LEDGER"'}
"""
INNER = """
steps:
  - {id: i, run: 'echo i >> "$LEDGER"'}
  - {id: j, run: 'echo j >> "$LEDGER"'}
"""


@pytest.mark.parametrize("status", ["pending", "failed"])
@pytest.mark.parametrize(
    ("unit", "ran"),
    [
        ("l", ["l1", "l2"]),
        ("m", ["ma", "mb"]),
        ("g", ["onea", "twoa", "oneb", "twob"]),
        ("g[a]", ["onea", "twoa"]),
        ("g/one[a]", ["onea"]),
        ("p", ["i", "j"]),
        ("p/i", ["i", "j"]),
        ("p/j", ["j"]),
    ],
)
def test_whatever_is_marked_runs_again(project: Project, unit: str, ran: list[str], status: str) -> None:
    project.pipeline(INNER, "inner.yaml")
    project.pipeline(NESTED)
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "1", check=0)
    outputs = project.json("show", "r")["steps"][0]["outputs"]
    again(project)

    project.rerail("mark", "r", unit, status, check=0)
    project.rerail("resume", "r", check=0)

    # What comes after the loop needs it; it came out as it was, so that does not run.
    assert project.ledger() == ran
    assert project.json("show", "r")["steps"][0]["outputs"] == outputs


def test_a_loop_that_was_cut_off_and_is_marked_begins_anew(project: Project) -> None:
    project.pipeline("""
steps:
  - id: l
    loop: {max_iterations: 3, until: steps.s.outputs.v >= 3}
    steps:
      - id: s
        run: |
          echo ${{ loop.iteration }} >> "$LEDGER"
          echo "v=${{ loop.iteration }}" >> "$RERAIL_OUTPUT"
          test ${{ loop.iteration }} != 2 -o -e struck || { touch struck; kill -9 $PPID; sleep 60; }
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=-9)
    again(project)
    project.rerail("mark", "r", "l", "pending", check=0)

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["1", "2", "3"]


LOOPED = """
steps:
  - id: l
    loop: {max_iterations: 3, until: loop.iteration >= 2}
    steps:
      - {id: s, run: 'echo s${{ loop.iteration }} >> "$LEDGER"; echo "v=${{ loop.iteration }}" >> "$RERAIL_OUTPUT"'}
      - id: m
        map: {over: [a, b], max_failures: 1, parallel: 1}
        steps:
          - run: |
              echo m${{ item }}${{ loop.iteration }} >> "$LEDGER"
              test ${{ item }} != b -o -e calm
      - {id: t, run: 'echo t${{ loop.iteration }}-${{ steps.m.outputs.failed }} >> "$LEDGER"'}
  - {id: z, run: 'echo z-${{ steps.l.outputs.v }} >> "$LEDGER"'}
"""


def test_an_item_of_the_last_iteration_goes_on_where_it_failed(project: Project) -> None:
    project.pipeline(LOOPED)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    again(project)
    (project.root / "calm").touch()

    done = project.rerail("dlq", "retry", "r", "2::b", check=0)

    assert "continue  l" in done.stderr
    assert project.ledger() == ["mb2", "t2-0", "z-2"]  # how many failed is another number, for t and for z
    assert [letter["item"] for letter in project.json("dlq", "list", "r")] == ["1::b"]


def test_an_item_of_an_iteration_that_is_over_has_the_loop_begin_anew_and_the_plan_says_so(project: Project) -> None:
    project.pipeline(LOOPED)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    again(project)
    (project.root / "calm").touch()

    done = project.rerail("dlq", "retry", "r", "1::b", check=0)

    assert "rerun  l     retrying l/m[1::b], of an earlier iteration, restarts the loop" in done.stderr
    assert project.ledger() == ["s1", "ma1", "mb1", "t1-0", "s2", "ma2", "mb2", "t2-0", "z-2"]
    assert project.json("dlq", "list", "r") == []


def test_a_retry_in_the_last_iteration_can_be_cut_off_and_goes_on(project: Project) -> None:
    project.pipeline(
        LOOPED.replace(
            "test ${{ item }} != b",
            "test -e struck -o ! -e calm || { touch struck; kill -9 $PPID; sleep 60; }\n              test ${{ item }} != b",
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    again(project)
    (project.root / "calm").touch()
    project.rerail("dlq", "retry", "r", "2::b", check=-9)

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["mb2", "mb2", "t2-0", "z-2"]
    assert project.json("show", "r")["status"] == "completed"


def test_what_the_iteration_before_handed_out_is_there_for_a_retry(project: Project) -> None:
    project.pipeline("""
steps:
  - id: l
    loop: {max_iterations: 2}
    steps:
      - id: m
        map: {over: [a], max_failures: 1}
        steps: [{run: 'echo before-${{ steps.k.outputs.v | default("none") }} >> "$LEDGER"; test -e calm'}]
      - {id: k, run: 'echo k >> "$LEDGER"; echo "v=${{ loop.iteration }}" >> "$RERAIL_OUTPUT"', needs: []}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "1", check=0)
    (project.root / "calm").touch()
    again(project)

    project.rerail("dlq", "retry", "r", "2::a", check=0)

    assert project.ledger()[0].startswith("before-")
    assert project.json("show", "r")["status"] == "completed"


def test_keeping_what_is_done_holds_for_one_invocation(project: Project) -> None:
    text = """
steps:
  - {id: a, run: 'echo a-old >> "$LEDGER"'}
  - {id: m, needs: [], map: {over: [x, y], parallel: 1}, steps: [{run: 'echo m${{ item }}-old >> "$LEDGER"; test ${{ item }} = x -o -e go'}]}
  - {id: l, needs: [], loop: {max_iterations: 2}, steps: [{run: 'echo l${{ loop.iteration }}-old >> "$LEDGER"; test ${{ loop.iteration }} = 1 -o -e go'}]}
"""
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "1", check=1)
    again(project)
    project.pipeline(text.replace("-old", "-new"))
    project.rerail("resume", "r", "--changes", "keep", "--parallel", "1", check=1)
    assert sorted(project.ledger()) == ["l2-new", "my-new"]  # two controllers at once: neither comes first
    again(project)
    (project.root / "go").touch()

    assert set(plan_of(project).values()) == {"rerun"}
    project.rerail("resume", "r", check=0)

    assert sorted(project.ledger()) == ["a-new", "l1-new", "l2-new", "mx-new", "my-new"]


def test_a_question_that_waits_is_said_beside_a_failure_whether_or_not_there_are_last_hooks(project: Project) -> None:
    for last in ("", "finally: [{run: 'true'}]\n"):
        project.pipeline(f"steps:\n  - {{id: ok, approve: go on?}}\n  - {{id: bad, needs: [], run: exit 1}}\n{last}")
        done = project.rerail("run", "pipeline.yaml", check=1)
        assert "also: ok waits for approval" in done.stderr


def test_an_unknown_outcome_is_said_beside_a_failure(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: once, idempotent: false, run: 'test -e struck || { touch struck; kill -9 $PPID; sleep 60; }'}
  - {id: bad, needs: [], run: 'exit 1'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "1", check=-9)
    done = project.rerail("resume", "r", check=1)
    assert "also: the outcome of once is unknown" in done.stderr


def test_step_keys_of_different_items_are_different(project: Project) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: {lines: list}, parallel: 1}
    steps: [{run: 'echo "${{ item }} $RERAIL_STEP_KEY" >> keys; test -e go'}]
""")
    (project.root / "list").write_text("docs\n")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.rerail("mark", "r", "m", "pending", check=0)
    (project.root / "list").write_text("docs\ndocs/round-1\ndocs/1\ndocs%2F1\n")
    (project.root / "go").touch()
    project.rerail("resume", "r", check=0)
    lines = (project.root / "keys").read_text().splitlines()
    keys = [line.split(" ", 1)[1] for line in lines]
    assert len(set(keys)) == len(keys) == 5, lines


def test_a_map_that_failed_retries_its_items_though_one_was_dropped(project: Project) -> None:
    project.pipeline("""
steps: [{id: m, map: {over: [x, y], parallel: 1}, steps: [{run: 'echo ${{ item }} >> "$LEDGER"; test -e go'}]}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.rerail("dlq", "drop", "r", "y", check=0)
    (project.root / "go").touch()
    again(project)

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["x"]


# Dies with the record of the last item's failure, and before that of the map's.
DYING = """
import os, signal
from rerail.core.events import StepFailed
from rerail.engine.recorder import Recorder
append = Recorder._append
def dying(self):
    events = [event for _, event in self._staged]
    append(self)
    last = {"dlq": "y", "stop": "x"}[os.environ["HOW"]]
    if any(isinstance(event, StepFailed) and event.item == last for event in events):
        os.kill(os.getpid(), signal.SIGKILL)
Recorder._append = dying
from rerail.cli.main import main
main()
"""


@pytest.mark.parametrize("how", ["dlq", "stop"])
def test_items_are_retried_if_nobody_was_left_to_record_that_their_map_failed(project: Project, how: str) -> None:
    project.pipeline(f"""
steps:
  - id: m
    map: {{over: [x, y], parallel: 1, on_item_failure: {how}}}
    steps: [{{run: 'echo ${{{{ item }}}} >> "$LEDGER"; test -e go || {{ touch struck; exit 1; }}'}}]
""")
    project.env["HOW"] = how
    process = project.spawn("run", "pipeline.yaml", "--id", "r", program=(sys.executable, "-c", DYING))
    process.communicate(timeout=240)
    assert process.returncode == -9
    (project.root / "go").touch()

    project.rerail("resume", "r", check=0)


def test_a_fork_does_not_clean_up_after_a_failure_that_it_shares(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: a, allow_failure: true, run: 'echo a >> "$LEDGER"; exit 1', on_failure: [{run: 'echo undo >> "$LEDGER"'}]}
  - {id: b, run: 'echo b >> "$LEDGER"'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    assert project.ledger() == ["a", "undo", "b"]
    again(project)
    project.rerail("fork", "r", "--from", "b", "--id", "f", check=0)
    assert project.ledger() == ["b"]


def test_what_cleans_up_inside_a_map_runs_although_the_budget_is_spent(project: Project) -> None:
    project.pipeline("""
budget: {cost_usd: 0.1}
steps:
  - id: m
    map: {over: [x, y, z], parallel: 1}
    steps:
      - id: s
        run: |
          echo '{"cost_usd": 0.1}' >> "$RERAIL_METRICS"
          echo s-${{ item }} >> "$LEDGER"; exit 1
        on_failure: [{run: 'echo undo-${{ item }} >> "$LEDGER"'}, {run: 'echo done-${{ item }} >> "$LEDGER"'}]
      - {id: t, run: 'true'}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=5)
    assert project.ledger() == ["s-x", "undo-x", "done-x"]


def test_steps_of_a_pipeline_that_is_given_up_have_new_keys(project: Project) -> None:
    inner = "steps:\n  - {id: s, run: 'echo \"$RERAIL_STEP_KEY\" >> keys'}\n"
    project.pipeline(inner, "inner.yaml")
    project.pipeline("steps: [{id: u, pipeline: inner.yaml}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.pipeline(inner.replace("echo", "echo --"), "inner.yaml")
    project.rerail("resume", "r", check=0)
    project.rerail("resume", "r", "--from", "u", check=0)

    keys = (project.root / "keys").read_text().split()
    assert [key for key in keys if key != "--"] == ["r/u/s", "r/u/s/round-1", "r/u/s/round-2"]


@pytest.mark.parametrize("body", ["loop: {max_iterations: 2}", "map: {over: [1, 2], parallel: 1}"])
def test_a_lost_artifact_of_what_must_not_be_repeated_is_asked_about_wherever_it_is(project: Project, body: str) -> None:
    which = "loop.iteration" if "loop" in body else "item"
    project.pipeline(f"""
steps:
  - id: l
    {body}
    steps:
      - {{id: o, run: 'true'}}
      - id: g
        idempotent: false
        artifacts: [{{path: "a${{{{ {which} }}}}.txt", keep: false}}]
        run: echo whole > a${{{{ {which} }}}}.txt; echo g${{{{ {which} }}}} >> "$LEDGER"
  - {{id: e, needs: [], run: 'test -e go'}}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "a1.txt").write_text("scribbled")
    (project.root / "go").touch()
    again(project)

    paused = project.rerail("resume", "r", check=5)

    assert "l/g[1]" in paused.stderr
    assert project.ledger() == []
    project.rerail("mark", "r", "l/g[1]", "completed", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == []
    project.rerail("verify", "r", check=0)


@pytest.mark.parametrize("edited", ["o", "needed"])
@pytest.mark.parametrize("body", ["loop: {max_iterations: 2}", "map: {over: [1, 2], parallel: 1}"])
def test_what_is_in_doubt_is_asked_about_before_what_it_is_in_begins_anew(
    project: Project, body: str, edited: str
) -> None:
    text = f"""
steps:
  - {{id: needed, run: 'echo "v=1" >> "$RERAIL_OUTPUT"; : needed-1'}}
  - id: l
    {body}
    steps:
      - {{id: o, run: ': o-1'}}
      - id: g
        idempotent: false
        run: echo g >> "$LEDGER"; test -e struck || {{ touch struck; kill -9 $PPID; sleep 60; }}
"""
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r")
    project.pipeline(text.replace(f": {edited}-1", f": {edited}-2"))
    assert project.ledger() == ["g"]
    again(project)

    paused = project.rerail("resume", "r", check=5)

    assert "l/g[1]" in paused.stderr
    assert project.ledger() == []
    project.rerail("mark", "r", "l/g[1]", "pending", check=0)
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["g", "g"]


def test_a_loop_that_a_fork_shares_and_begins_anew_sees_nothing_of_its_last_pass(project: Project) -> None:
    project.pipeline(
        """
outputs: {v: "${{ steps.l.outputs.v }}"}
steps:
  - {id: k, run: 'true'}
  - id: l
    loop: {max_iterations: 2}
    steps:
      - {id: m, run: 'echo "m${{ loop.iteration }}-${{ steps.n.outputs.v | default("nothing") }}" >> "$LEDGER"'}
      - id: n
        artifacts: [{path: "b${{ loop.iteration }}.txt", keep: false}]
        run: |
          echo whole > b${{ loop.iteration }}.txt
          echo "v=${{ loop.iteration }}" >> "$RERAIL_OUTPUT"
""",
        "inner.yaml",
    )
    project.pipeline("steps: [{id: j, pipeline: inner.yaml}, {id: e, run: 'test -e go'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.rerail("fork", "r", "--from", "e", "--id", "f", check=1)
    (project.root / "b2.txt").write_text("scribbled")
    (project.root / "go").touch()
    again(project)

    project.rerail("resume", "f", check=0)

    assert project.ledger() == ["m1-nothing", "m2-1"]


def test_a_map_that_failed_tries_its_failed_items_again_also_where_another_has_lost_its_artifact(
    project: Project,
) -> None:
    project.pipeline("""
steps:
  - id: m
    map: {over: [x, y], parallel: 1}
    steps:
      - run: 'echo ${{ item }} >> "$LEDGER"; echo 1 > ${{ item }}.txt; test ${{ item }} = x -o -e go'
        artifacts: [{path: "${{ item }}.txt", keep: false}]
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "x.txt").unlink()
    (project.root / "go").touch()
    again(project)

    project.rerail("resume", "r", check=0)

    assert sorted(project.ledger()) == ["x", "y"]


@pytest.mark.parametrize("how", ["at once", "after --until", "after --changes keep"])
def test_a_command_that_was_edited_makes_its_list_anew_and_keeps_what_is_the_same(project: Project, how: str) -> None:
    text = """
steps:
  - {id: a, run: 'true'}
  - id: m
    map: {over: {command: "echo x; echo y"}}
    steps: [{run: 'echo ${{ item }} >> "$LEDGER"'}]
"""
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    again(project)
    project.pipeline(text.replace("echo y", "echo z"))
    if how != "at once":
        project.rerail("resume", "r", *(("--until", "a") if "until" in how else ("--changes", "keep")), check=0)
        assert project.ledger() == []

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["z"]
    assert [one["key"] for one in project.json("show", "r")["steps"][1]["outputs"]["results"]] == ["x", "z"]
    assert "nothing to resume" in project.rerail("resume", "r", check=0).stderr


def test_marking_a_step_of_the_last_iteration_repeats_nothing_that_completed_beside_it(project: Project) -> None:
    project.pipeline("""
steps:
  - id: l
    loop: {max_iterations: 2}
    steps:
      - {id: b, run: 'echo "b${{ loop.iteration }}" >> "$LEDGER"'}
      - id: c
        idempotent: false
        artifacts: [{path: "a${{ loop.iteration }}.txt", keep: false}]
        run: 'echo "c${{ loop.iteration }}" >> "$LEDGER"; echo whole > a${{ loop.iteration }}.txt'
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    (project.root / "a2.txt").unlink()
    project.rerail("resume", "r", check=5)
    project.rerail("mark", "r", "l/c[2]", "pending", check=0)
    again(project)

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["c2"]
