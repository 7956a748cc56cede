"""Approvals in process: questions, answers at the terminal and elsewhere, rejections that are taken back."""

from __future__ import annotations

from datetime import timedelta

from rerail.core import events as ev
from rerail.core.model import RunOptions
from rerail.engine.spec import Answer
from tests.engine.simulation import Script, Simulation

ASKS = """
steps:
  - {id: build, run: x}
  - {id: ok, needs: [build], approve: {message: ship it?}}
  - {id: ship, needs: [ok], run: x}
  - {id: beside, needs: [], run: x}
"""


def answer(run: Simulation, *, approved: bool, by: str = "ann", after: float = 0.0) -> ev.ApprovalGiven:
    return ev.ApprovalGiven(at=run.clock.now() + timedelta(seconds=after), step="ok", approved=approved, by=by)


def test_without_an_answer_the_run_pauses_once_all_else_is_done() -> None:
    run = Simulation(ASKS)

    result = run.run()

    assert (result.status, result.cause, result.waiting_for) == ("paused", "approval", ("ok",))
    assert run.launched == ["build", "beside"]


def test_an_answer_from_elsewhere_lets_the_next_invocation_go_on() -> None:
    run = Simulation(ASKS)
    run.run()
    run.messages = [answer(run, approved=True)]

    assert run.run().status == "completed"

    assert run.launched == ["build", "beside", "ship"]
    assert run.unit("ok").outputs["by"] == "ann"


def test_an_answer_arrives_while_other_steps_run() -> None:
    run = Simulation(ASKS, beside=Script(seconds=60))
    asked: list[bool] = []

    def send(*_: object) -> None:
        if run.executor.launched == ["build", "beside"] and not asked:
            asked.append(True)
            run.messages = [answer(run, approved=True, after=5)]

    run.on_wait = send

    assert run.run().status == "completed"
    assert run.launched == ["build", "beside", "ship"]


def test_the_person_at_the_terminal_is_asked_when_nothing_else_is_left() -> None:
    run = Simulation(ASKS)
    run.answers = [Answer(approved=True, by="bob")]

    assert run.run().status == "completed"

    assert run.launched == ["build", "beside", "ship"]
    assert run.unit("ok").outputs["by"] == "bob"


def test_a_rejection_fails_the_step_and_what_needs_it_does_not_run() -> None:
    run = Simulation(ASKS)
    run.answers = [Answer(approved=False, by="bob", reason="no")]

    result = run.run()

    assert result.status == "failed"
    assert "ship" not in run.launched
    assert run.unit("ok").error is not None


def test_the_newest_answer_counts_in_whatever_order_they_arrive() -> None:
    run = Simulation(ASKS)
    run.run()
    run.messages = [answer(run, approved=False, after=5), answer(run, approved=True, after=1)]

    assert run.run().status == "failed"
    assert "ship" not in run.launched


def test_a_rejection_is_taken_back_while_another_step_still_runs() -> None:
    text = ASKS.replace("ship it?}}", "ship it?}, on_failure: [{id: clean, run: x}]}")
    run = Simulation(text, beside=Script(seconds=600), clean=Script(seconds=60))
    sent: list[bool] = []

    def send(*_: object) -> None:
        launched = run.executor.launched
        if launched == ["build", "beside"] and not sent:
            sent.append(True)
            run.messages = [answer(run, approved=False, after=1)]
        elif launched == ["build", "beside", "clean"] and len(sent) == 1:
            sent.append(True)
            run.messages = [answer(run, approved=True, after=2)]

    run.on_wait = send

    assert run.run(RunOptions(parallel=2)).status == "completed"
    starts = dict(run.executor.started_at)
    assert starts["ship"] - starts["clean"] >= 60  # the clean-up comes first
    assert starts["ship"] - starts["beside"] < 600


def test_an_answer_to_an_older_version_of_the_question_does_not_count() -> None:
    run = Simulation(ASKS, build=[Script(outputs={"v": 1}), Script(outputs={"v": 2})])
    run.run()
    run.messages = [answer(run, approved=True)]
    run.pipeline = Simulation(ASKS.replace("{id: build, run: x}", "{id: build, run: y}")).pipeline

    result = run.run()

    assert (result.status, result.waiting_for) == ("paused", ("ok",))  # built anew, so it asks anew
    assert run.launched == ["build", "beside", "build"]
