"""The plan: a pure function, compared with an independent oracle over random graphs and histories."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail import testing
from rerail.core import events as ev
from rerail.core.graph import topological
from rerail.core.model import Pipeline, Retry, Run, Step
from rerail.core.plan import PlanOptions
from rerail.core.planner import plan
from rerail.core.staleness import fingerprint
from rerail.core.state import RunState, fold
from rerail.core.unit_id import UnitId
from tests.core.test_state import failure

AT = datetime(2026, 1, 1, tzinfo=UTC)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    count = draw(st.integers(1, 8))
    steps = []
    for number in range(count):
        needs = draw(st.sets(st.integers(0, number - 1))) if number else set()
        steps.append(
            Step(id=f"s{number}", action=Run(script=f"echo {number}"), needs=tuple(f"s{n}" for n in sorted(needs)))
        )
    return Pipeline(name="p", steps=tuple(draw(st.permutations(steps))))


def drive(pipeline: Pipeline, state: RunState, produce: dict[str, int]) -> list[str]:
    """Run what the plan says, as the engine does it, with steps that produce given outputs; what ran."""
    ran = []
    decisions = {decision.step: decision for decision in plan(pipeline, state).decisions}
    _do(state, testing.resumed() if state.seq else testing.started())
    for step in topological({step.id: step.needs for step in pipeline.steps}):
        # Decided again at the last moment: what it needs may have come out the same.
        now = {decision.step: decision for decision in plan(pipeline, state).decisions}[step]
        if now.decision == "reuse":
            continue
        assert decisions[step].decision != "reuse", "a step that was to be reused ran"
        unit = state.unit(UnitId(step))
        if unit.status in ("completed", "failed"):
            _do(state, ev.StepInvalidated(at=AT, step=step, reason=now.reason))
        attempt = unit.attempts + 1
        digest = fingerprint(_step(pipeline, step), {})
        _do(state, ev.StepStarted(at=AT, step=step, attempt=attempt, fingerprint=digest))
        _do(state, ev.StepCompleted(at=AT, step=step, attempt=attempt, duration=1, outputs={"n": produce[step]}))
        ran.append(step)
    return ran


def _step(pipeline: Pipeline, wanted: str) -> Step:
    return next(step for step in pipeline.steps if step.id == wanted)


def _do(state: RunState, event: Any) -> None:
    fold([(state.seq + 1, event)], state)


def edited(pipeline: Pipeline, changed: set[str]) -> Pipeline:
    steps = tuple(
        msgspec.structs.replace(step, action=Run(script=f"{step.command} edited")) if step.id in changed else step
        for step in pipeline.steps
    )
    return msgspec.structs.replace(pipeline, steps=steps)


@given(pipelines())
def test_after_a_full_run_nothing_runs(pipeline: Pipeline) -> None:
    state = RunState()
    assert sorted(drive(pipeline, state, dict.fromkeys((s.id for s in pipeline.steps), 1))) == sorted(
        step.id for step in pipeline.steps
    )

    assert drive(pipeline, state, {}) == []


@pytest.mark.scenario("L5")
@given(pipelines(), st.data())
def test_edits_rerun_what_changed_and_what_depends_on_a_different_product(
    pipeline: Pipeline, data: st.DataObject
) -> None:
    names = [step.id for step in pipeline.steps]
    changed = data.draw(st.sets(st.sampled_from(names)))
    different = data.draw(st.sets(st.sampled_from(names)))  # steps that produce something else the second time
    state = RunState()
    drive(pipeline, state, dict.fromkeys(names, 1))

    ran = drive(edited(pipeline, changed), state, {name: 2 if name in different else 1 for name in names})

    expected: set[str] = set()
    needs = {step.id: step.needs for step in pipeline.steps}
    for step in topological(needs):
        if step in changed or any(other in expected and other in different for other in _ancestors(needs, step)):
            expected.add(step)
    assert set(ran) == expected


def _ancestors(needs: dict[str, tuple[str, ...]], step: str) -> set[str]:
    found: set[str] = set()
    for need in needs[step]:
        found |= {need} | _ancestors(needs, need)
    return found


@given(pipelines(), st.data())
def test_a_crash_in_the_middle_of_a_cascade_loses_nothing_of_it(pipeline: Pipeline, data: st.DataObject) -> None:
    names = [step.id for step in pipeline.steps]
    changed = data.draw(st.sets(st.sampled_from(names), min_size=1))
    whole, cut = RunState(), RunState()
    for state in (whole, cut):
        drive(pipeline, state, dict.fromkeys(names, 1))
    new = dict.fromkeys(names, 2)
    after = edited(pipeline, changed)
    all_at_once = drive(after, whole, new)
    # The same, but the process dies after some steps and another life goes on.
    stop = data.draw(st.integers(0, len(all_at_once)))
    only_first = _drive_some(after, cut, new, stop)
    rest = drive(after, cut, new)

    assert [*only_first, *rest] == all_at_once


def _drive_some(pipeline: Pipeline, state: RunState, produce: dict[str, int], limit: int) -> list[str]:
    ran: list[str] = []
    _do(state, testing.resumed())
    for step in topological({step.id: step.needs for step in pipeline.steps}):
        decision = {item.step: item for item in plan(pipeline, state).decisions}[step]
        if len(ran) == limit or decision.decision == "reuse":
            continue
        unit = state.unit(UnitId(step))
        _do(state, ev.StepInvalidated(at=AT, step=step, reason="r"))
        digest = fingerprint(_step(pipeline, step), {})
        _do(state, ev.StepStarted(at=AT, step=step, attempt=unit.attempts + 1, fingerprint=digest))
        done = ev.StepCompleted(at=AT, step=step, attempt=unit.attempts, duration=1, outputs={"n": produce[step]})
        _do(state, done)
        ran.append(step)
    return ran


def two_steps(**options: Any) -> Pipeline:
    first = Step(id="a", action=Run(script="true"), **options)
    return Pipeline(name="p", steps=(first, Step(id="b", action=Run(script="true"), needs=("a",))))


@pytest.mark.sweep("all")
@pytest.mark.parametrize(
    ("history", "decision", "reason"),
    [
        ([], "run", "not started yet"),
        ([ev.StepStarted(at=AT, step="a", attempt=1)], "rerun", "interrupted during attempt 1"),
        (
            [
                ev.StepStarted(at=AT, step="a", attempt=1),
                ev.StepFailed(at=AT, step="a", attempt=1, duration=1, error=failure("a")),
            ],
            "rerun",
            "failed: exited with code 1",
        ),
        (
            [
                ev.StepStarted(at=AT, step="a", attempt=1),
                ev.StepFailed(at=AT, step="a", attempt=1, duration=1, error=failure("a"), retry_at=AT, retry_in=1),
            ],
            "rerun",
            "attempt 1 failed; its retry is pending",
        ),
        (
            [
                ev.StepStarted(at=AT, step="a", attempt=1),
                ev.StepFailed(at=AT, step="a", attempt=1, duration=1, error=failure("a"), allowed=True),
            ],
            "rerun",
            "failed, and is no longer allowed to fail",
        ),
        ([ev.StepSkipped(at=AT, step="a", reason="not wanted")], "reuse", "skipped: not wanted"),
    ],
)
def test_every_decision_has_its_reason(history: list[Any], decision: str, reason: str) -> None:
    state = fold(enumerate([testing.started(), *history], 1))

    first = plan(two_steps(), state).decisions[0]
    assert (first.decision, first.reason) == (decision, reason)


def test_a_step_that_is_not_idempotent_and_was_cut_off_is_asked_about() -> None:
    state = fold(enumerate([testing.started(), ev.StepStarted(at=AT, step="a", attempt=1)], 1))

    assert plan(two_steps(idempotent=False), state).decisions[0].decision == "in-doubt"


def test_retries_time_limits_and_names_are_not_part_of_the_definition() -> None:
    plain = Step(id="a", action=Run(script="true"))
    for other in (
        Step(id="a", action=Run(script="\n true \n")),
        Step(id="a", action=Run(script="true"), retry=Retry(attempts=5), timeout=3, name="x", line=7, needs=("z",)),
    ):
        assert fingerprint(other, {}) == fingerprint(plain, {})
    assert fingerprint(plain, {"A": "1"}) != fingerprint(plain, {})
    assert fingerprint(Step(id="a", action=Run(script="false")), {}) != fingerprint(plain, {})
    assert fingerprint(Step(id="a", action=Run(script="true"), cwd="x"), {}) != fingerprint(plain, {})


def test_changes_keep_reuses_what_was_edited_and_says_so() -> None:
    pipeline = two_steps()
    state = RunState()
    drive(pipeline, state, {"a": 1, "b": 1})
    changed = edited(pipeline, {"a"})

    assert [item.decision for item in plan(changed, state).decisions] == ["rerun", "rerun"]
    kept = plan(changed, state, options=PlanOptions(changes="keep")).decisions
    assert [item.decision for item in kept] == ["reuse", "reuse"]
    assert "--changes keep" in kept[0].reason
    assert plan(changed, state).decisions[1].unless_unchanged == ("a",)


@pytest.mark.scenario("L5")
def test_a_step_that_left_the_pipeline_is_named() -> None:
    pipeline = two_steps()
    state = RunState()
    drive(pipeline, state, {"a": 1, "b": 1})

    assert plan(Pipeline(name="p", steps=pipeline.steps[:1]), state).removed == ("b",)
