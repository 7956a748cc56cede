"""The plan in words."""

from __future__ import annotations

from tests.conftest import Project


def test_the_plan_of_a_map_under_way_says_on_what_it_depends(project: Project) -> None:
    text = """
steps:
%s  - {id: m, map: {over: [a, b], parallel: 1}, steps: [{run: 'test ${{ item }} = a'}]}
"""
    project.pipeline(text % "  - {id: mid, run: 'true'}\n")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.pipeline(text % "  - {id: mid, run: 'true edited'}\n")

    told = project.rerail("resume", "r", "--dry-run", check=0).stderr
    assert "retrying 1; restarts if the result of mid changes" in told

    project.pipeline(text % "  - {id: new, run: 'true'}\n")
    assert "new dependency new" in project.rerail("resume", "r", "--dry-run", check=0).stderr


FIRST = """
steps:
  - {id: fetch, run: "echo one\\necho two"}
  - {id: draw, needs: [fetch], when: run.id == 'x', run: echo draw}
  - id: each
    needs: [fetch]
    map: {over: [a, b]}
    steps: [{id: one, run: 'echo ${{ item }}'}, {id: two, run: 'echo again'}]
  - {id: ok, needs: [draw, each], approve: Ship it?}
finally: [{id: tidy, run: 'true'}]
"""


def test_the_first_plan_shows_order_conditions_and_commands(project: Project) -> None:
    project.pipeline(FIRST)
    expected = """\
  ORDER    PLAN  STEP   AFTER       WHEN           COMMAND
  1        run   fetch                             echo one …
  2        run   draw   fetch       run.id == 'x'  echo draw
  2        run   each   fetch                      map over list: echo ${{ item }}, echo again
  2.1              one                             echo ${{ item }}
  2.2              two  one                        echo again
  3        run   ok     draw, each                 approve: Ship it?
  finally        tidy                              true
rerail: 4 steps, up to 3 in parallel; those with the same number do not wait for each other
"""
    assert project.rerail("run", "--dry-run", "--parallel", "3", check=0).stderr == expected
    assert project.rerail("plan", "pipeline.yaml", check=0).stderr.splitlines()[:-1] == expected.splitlines()[:-1]
    some = project.rerail("run", "--dry-run", "--until", "each", "--skip", "fetch", check=0).stderr
    assert "1        skip   fetch" in some
    assert "--skip\n" in some
    assert "after --until each" in some
    assert not (project.root / ".rerail").exists()

    found = project.json("plan", "pipeline.yaml")
    assert [one["decision"] for one in found["decisions"]] == ["run"] * 4
    outline = found["outline"]["steps"]
    assert [(one["step"], one["stage"], one["needs"], one["kind"]) for one in outline] == [
        ("fetch", 1, [], "run"),
        ("draw", 2, ["fetch"], "run"),
        ("each", 2, ["fetch"], "map"),
        ("ok", 3, ["draw", "each"], "approve"),
    ]
    assert [one["step"] for one in outline[2]["steps"]] == ["each/one", "each/two"]
    assert found["outline"]["last"][0]["step"] == "tidy"
    assert project.json("run", "--dry-run")["outline"] == found["outline"]


def test_the_order_of_the_first_plan_is_kept_by_the_run(project: Project) -> None:
    project.pipeline(FIRST.replace("approve: Ship it?", "run: 'true'").replace("run.id == 'x'", "'true'"))
    stage = {one["step"]: one["stage"] for one in project.json("plan", "pipeline.yaml")["outline"]["steps"]}
    project.rerail("run", "--id", "r", check=0)
    events = [(one["event"], one.get("step")) for one in reversed(project.json("history", "r"))]
    for step, at in stage.items():
        begun = events.index(("step-started", step))
        assert all(events.index(("step-completed", other)) < begun for other in stage if stage[other] == at - 1)
