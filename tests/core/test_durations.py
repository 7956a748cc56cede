"""Worked time: what nobody worked on does not count, wherever a duration is shown."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from rerail import testing
from rerail.cli.render.units import worked
from rerail.core import events as ev
from rerail.core.durations import LastSeen, active_seconds, span_seconds
from rerail.core.state import RunState, fold
from tests.conftest import Project, eventually

AT = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def at(event: Any, when: datetime) -> Any:
    return msgspec.structs.replace(event, at=when)


def test_the_time_between_invocations_counts_for_the_span_only() -> None:
    state = fold(
        enumerate(
            [
                at(testing.started(), AT),
                ev.RunInterrupted(at=AT + timedelta(seconds=5), reason="stopped", active_seconds=4.0),
                at(testing.resumed(), AT + HOUR),
                ev.RunFinished(at=AT + HOUR + timedelta(seconds=2), status="completed", active_seconds=2.0),
            ],
            1,
        )
    )

    assert active_seconds(state) == 6.0
    assert span_seconds(state) == 3602.0
    assert worked(6.0, 3602.0) == "6.0 s (1 h 00 min from start to finish)"
    assert worked(6.0, 6.2) == "6.0 s"


def test_a_live_run_counts_up_to_now_and_a_killed_one_up_to_its_death() -> None:
    state = fold([(1, at(testing.started(), AT))], RunState())

    assert active_seconds(state) == 0.0
    assert active_seconds(state, LastSeen(at=AT + HOUR)) == 3600.0
    assert span_seconds(state, LastSeen(at=AT + HOUR)) == 3600.0
    # Measured by a clock that nobody sets, which wins over the wall clock.
    died = LastSeen(at=AT + HOUR, after=7.0)
    assert active_seconds(state, died) == 7.0
    # A sign of an earlier invocation says nothing.
    assert active_seconds(state, LastSeen(at=AT - HOUR, after=7.0)) == 0.0

    resumed = msgspec.structs.replace(testing.resumed(), at=AT + 2 * HOUR, died_at=died.at, died_after=died.after)
    after = fold([(2, resumed)], state)
    assert after.active_seconds == 7.0  # what was shown before is what is recorded


SLOW = "steps: [{id: quick, run: 'true'}, {id: a, needs: [quick], run: 'touch begun; sleep 60'}]\n"


def test_a_live_run_and_its_running_step_are_as_old_as_their_work(project: Project) -> None:
    project.pipeline(SLOW)
    live = project.spawn("run", "pipeline.yaml", "--id", "v")
    eventually((project.root / "begun").exists, "the step runs")

    def both() -> tuple[float, float]:
        return project.json("list")[0]["active_seconds"], project.json("show", "v")["steps"][1]["duration_seconds"]

    first = both()
    eventually(lambda: all(now > before for now, before in zip(both(), first, strict=True)), "both grow")

    os.kill(live.pid, signal.SIGKILL)
    live.wait()
    eventually(lambda: project.json("list")[0]["status"] == "crashed", "it is known to be dead")
    dead = project.json("list")[0]["active_seconds"]
    assert dead >= first[0]
    eventually(
        lambda: project.json("list")[0]["active_seconds"] == project.json("show", "v")["active_seconds"], "settled"
    )
    dead = project.json("list")[0]["active_seconds"]
    assert project.json("list")[0]["active_seconds"] == dead, "a dead run grows no older"

    project.pipeline(SLOW.replace("sleep 60", "true"))
    project.rerail("resume", "v", check=0)
    ended = [event["active_seconds"] for event in project.json("history", "v") if event["event"] == "run-finished"]
    assert abs(project.json("show", "v")["active_seconds"] - (dead + ended[0])) < 1e-6


def test_the_summary_and_the_list_say_what_was_worked(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'test -e go'}]\n")
    project.rerail("run", "pipeline.yaml", "--id", "w", check=1)
    (project.root / "go").touch()
    project.rerail("resume", "w", check=0)
    row, shown = project.json("list")[0], project.json("show", "w")

    assert row["active_seconds"] == shown["active_seconds"]
    assert row["duration_seconds"] == shown["duration_seconds"]
    ended = [event["active_seconds"] for event in project.json("history", "w") if event["event"] == "run-finished"]
    assert abs(sum(ended) - row["active_seconds"]) < 1e-6
