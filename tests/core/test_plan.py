"""The reasons of a plan are true: each names the step or file that an oracle of its own finds responsible."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail import testing
from rerail.core import events as ev
from rerail.core.audit import Audit, AuditEntry, Flaw
from rerail.core.model import Pipeline, Run, Step
from rerail.core.plan import Decision
from rerail.core.planner import plan
from rerail.core.staleness import fingerprint
from rerail.core.state import RunState, fold
from rerail.core.unit_id import UnitId
from tests.core import reasons_oracle as oracle
from tests.core.test_state import failure

AT = datetime(2026, 1, 1, tzinfo=UTC)
PAGE = Path(__file__).parent.parent.parent / "docs/reference/reasons.md"
EDITS = ("edit", "insert", "remove", "rename", "connect", "disconnect", "reorder")
ENDS = ("whole", "interrupted", "failed", "invalidated", "before")


class History:
    """A run of a pipeline that is edited and struck; the ledger of the oracle is kept beside its state."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.state = RunState()
        self.steps: list[oracle.Step] = []  # each after its needs
        self.ledger: dict[str, oracle.Deeds] = {}
        self.lost: dict[str, str] = {}
        self.made = 0

    def draw(self, strategy: Any) -> Any:
        return self.data.draw(strategy)

    def insert(self) -> None:
        self.made += 1
        position = self.draw(st.integers(0, len(self.steps)))
        before = [step.id for step in self.steps[:position]]
        needs = self.draw(st.lists(st.sampled_from(before), max_size=3, unique=True)) if before else []
        new = oracle.Step(f"s{self.made}", needs, f"d{self.made}")
        for later in self.steps[position:]:
            if self.draw(st.booleans()):
                later.needs.append(new.id)
        self.steps.insert(position, new)

    def edit(self) -> None:
        """Edit the pipeline in one of the ways that a person does."""
        kind = self.draw(st.sampled_from(EDITS))
        if kind == "insert" or len(self.steps) < 2:
            self.insert()
            return
        position = self.draw(st.integers(0, len(self.steps) - 1))
        step = self.steps[position]
        if kind == "edit":
            step.definition += "'"
        elif kind == "remove":
            self.steps.remove(step)
            for other in self.steps:
                other.needs = [need for need in other.needs if need != step.id]
        elif kind == "rename":
            self.made += 1
            new = f"r{self.made}"
            for other in self.steps:
                other.needs = [new if need == step.id else need for need in other.needs]
            self.steps[position] = oracle.Step(new, step.needs, step.definition)
        elif kind == "connect":
            step.needs = list(dict.fromkeys([*step.needs, *[one.id for one in self.steps[:position]][:1]]))
        elif kind == "disconnect":
            step.needs = step.needs[1:]
        else:
            step.needs = step.needs[::-1]

    @property
    def pipeline(self) -> Pipeline:
        steps = tuple(Step(id=one.id, action=Run(script=one.definition), needs=tuple(one.needs)) for one in self.steps)
        return Pipeline(name="p", steps=steps)

    @property
    def audit(self) -> Audit:
        return Audit(
            flaws={
                UnitId(step): (Flaw(entry=AuditEntry(path=path), artifact=path, condition="missing"),)
                for step, path in self.lost.items()
            }
        )

    def decisions(self) -> dict[str, Decision]:
        return {one.step: one for one in plan(self.pipeline, self.state, self.audit).decisions}

    def do(self, event: Any) -> int:
        fold([(self.state.seq + 1, event)], self.state)
        return self.state.seq

    def invoke(self) -> None:
        """Execute the plan up to some step, at which the invocation ends one way or the other."""
        self.do(testing.resumed() if self.state.seq else testing.started())
        stop = self.draw(st.integers(0, len(self.steps)))
        for number, step in enumerate(self.steps):
            if any(self.ledger.get(need, oracle.Deeds()).last != "completed" for need in step.needs):
                continue
            made = self.decisions()[step.id]
            if made.kept:
                continue
            end = self.draw(st.sampled_from(ENDS)) if number == stop else "whole"
            if end == "before":
                return
            deeds = self.ledger.get(step.id)
            if deeds is not None and deeds.last == "completed":
                deeds.verdict = oracle.verdicts(self.steps, self.ledger, self.lost)[step.id]
                self.do(ev.StepInvalidated(at=AT, step=step.id, reason=made.reason, because=made.because))
                self.lost.pop(step.id, None)
                deeds.last = "invalidated"
            if end == "invalidated":
                return
            self.attempt(step, end)
            if end == "interrupted":
                return

    def attempt(self, step: oracle.Step, end: str) -> None:
        deeds = self.ledger.setdefault(step.id, oracle.Deeds())
        attempt = self.state.unit(UnitId(step.id)).attempts + 1
        digest = fingerprint(Step(id=step.id, action=Run(script=step.definition)), {})
        deeds.started = self.do(ev.StepStarted(at=AT, step=step.id, attempt=attempt, fingerprint=digest))
        deeds.definition = step.definition
        if end in {"interrupted", "failed"}:
            deeds.last = end
            known: dict[str, Any] = {"at": AT, "step": step.id, "attempt": attempt}
            if end == "interrupted":
                self.do(ev.StepInterrupted(reason="crash", **known))
            else:
                self.do(ev.StepFailed(duration=1, error=failure(step.id), **known))
            return
        deeds.last = "completed"
        result = self.draw(st.sampled_from(["x", "y"]))
        done = ev.StepCompleted(at=AT, step=step.id, attempt=attempt, duration=1, outputs={"n": result})
        deeds.results.append((self.do(done), result))

    def damage(self) -> None:
        done = [step.id for step in self.steps if self.ledger.get(step.id, oracle.Deeds()).last == "completed"]
        self.lost = {step: f"{step}.txt" for step in done if self.draw(st.integers(0, 3)) == 0}


@settings(deadline=None)
@given(st.data())
def test_every_reason_names_the_step_or_file_that_is_responsible(data: st.DataObject) -> None:
    history = History(data)
    for _ in range(data.draw(st.integers(1, 5))):
        history.insert()
    for _ in range(data.draw(st.integers(1, 4))):
        history.lost = {}
        history.invoke()
        for _ in range(data.draw(st.integers(0, 2))):
            history.edit()
        history.damage()
        check(history)


def check(history: History) -> None:
    due = oracle.verdicts(history.steps, history.ledger, history.lost)
    for step, made in history.decisions().items():
        verdict, because = due[step], made.because
        assert because is not None
        told = f"{step}: {made.decision}: {made.reason}; due is {verdict}"
        kinds = {"new-dependency", "result-changed"} if verdict.kind == "either" else {verdict.kind}
        assert because.kind in kinds, told
        assert not verdict.steps or because.step in verdict.steps, told
        assert not verdict.paths or because.path in verdict.paths, told
        for named in (because.step, because.path):
            assert named in made.reason, told
        assert made.kept == (verdict.kind == oracle.KEPT), told


def test_the_page_has_a_row_for_every_kind_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(rows) == sorted(get_args(ev.CauseKind))


def run_through(state: RunState, pipeline: Pipeline, outputs: str = "x") -> None:
    """Execute what the plan says, in the order of declaration."""
    fold([(state.seq + 1, testing.resumed() if state.seq else testing.started())], state)
    for step in pipeline.steps:
        made = next(one for one in plan(pipeline, state).decisions if one.step == step.id)
        unit = state.unit(UnitId(step.id))
        if made.kept:
            continue
        events: list[Any] = []
        if unit.status == "completed":
            events.append(ev.StepInvalidated(at=AT, step=step.id, reason=made.reason, because=made.because))
        events.append(ev.StepStarted(at=AT, step=step.id, attempt=1, fingerprint=fingerprint(step, {})))
        events.append(ev.StepCompleted(at=AT, step=step.id, attempt=1, duration=1, outputs={"n": outputs}))
        fold(enumerate(events, state.seq + 1), state)


def chain(*ids: str) -> Pipeline:
    steps = [
        Step(id=one, action=Run(script=one), needs=(before,) if before else ())
        for before, one in zip(("", *ids), ids, strict=False)
    ]
    return Pipeline(name="p", steps=tuple(steps))


@pytest.mark.parametrize("after", [("a", "new", "b", "c"), ("a", "new", "c")])
def test_a_step_that_was_renamed_or_added_is_what_its_dependants_name(after: tuple[str, ...]) -> None:
    state = RunState()
    run_through(state, chain("a", "b", "c"))

    last = plan(chain(*after), state).decisions[-1]

    assert last.reason == "new dependency new"
    assert last.unless_unchanged == ()  # it runs in any case


def test_a_removed_step_is_not_counted() -> None:
    state = RunState()
    run_through(state, chain("a", "b", "c"))
    shorter = chain("a", "c")
    fold([(state.seq + 1, msgspec.structs.replace(testing.resumed(), removed=plan(shorter, state).removed))], state)

    assert state.removed == ("b",)
    assert len(state.counted) == 2
