"""Graph, retry, values, params, checkpoint: the small pure parts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail import testing
from rerail.core import events as ev
from rerail.core.checkpoint import checkpoint_of
from rerail.core.graph import Frontier, downstream, find_cycle, topological
from rerail.core.model import Param, Pipeline, Retry, Run, Step
from rerail.core.params import resolve
from rerail.core.retry import FailureFacts, RetryFacts, backoff, decide, remaining
from rerail.core.state import fold
from rerail.core.values import parse_metrics, parse_outputs, problem, typed

AT = datetime(2026, 1, 1, tzinfo=UTC)
GRAPHS = st.dictionaries(st.integers(0, 9).map(str), st.lists(st.integers(0, 9).map(str), unique=True, max_size=4)).map(
    lambda graph: {step: [need for need in needs if need in graph] for step, needs in graph.items()}
)


@given(GRAPHS)
def test_a_graph_has_a_cycle_or_an_order(graph: dict[str, list[str]]) -> None:
    cycle = find_cycle(graph)
    order = topological(graph)
    if cycle:
        assert cycle[0] == cycle[-1]
        assert all(after in graph[before] for before, after in zip(cycle, cycle[1:], strict=False))
        assert len(order) < len(graph)
    else:
        assert sorted(order) == sorted(graph)
        place = {step: position for position, step in enumerate(order)}
        assert all(place[need] < place[step] for step, needs in graph.items() for need in needs)


def test_ten_thousand_steps_in_a_row_need_no_recursion() -> None:
    chain = {str(number): [str(number - 1)] if number else [] for number in range(10_000)}

    assert find_cycle(chain) == []
    assert topological(chain) == list(chain)
    assert len(downstream(chain, ["0"])) == 10_000
    assert Frontier(chain).ready() == ["0"]


@given(
    st.builds(
        Retry,
        attempts=st.integers(1, 100),
        backoff=st.sampled_from(["fixed", "linear", "exponential"]),
        delay=st.floats(0, 1e6),
        max_delay=st.floats(0, 1e6),
        jitter=st.booleans(),
    ),
    st.integers(1, 2000),
    st.floats(0, 1, exclude_max=True),
    st.booleans(),
)
def test_a_retry_is_bounded_and_ends(policy: Retry, failures: int, dice: float, retryable: bool) -> None:
    step = Step(id="a", action=Run(script=""), retry=policy)
    decision = decide(step, FailureFacts(retryable=retryable), RetryFacts(failures=failures, at=AT, dice=dice))
    if decision.delay is None:
        assert not retryable or failures >= policy.attempts
    else:
        assert retryable
        assert failures < policy.attempts
        assert 0 <= decision.delay <= policy.max_delay


def test_backoff_grows_as_it_says() -> None:
    def delays(kind: Any) -> list[float]:
        return [backoff(Retry(backoff=kind, delay=2, max_delay=9, jitter=False), n, 0.5) for n in (1, 2, 3, 4)]

    assert delays("fixed") == [2, 2, 2, 2]
    assert delays("linear") == [2, 4, 6, 8]
    assert delays("exponential") == [2, 4, 8, 9]
    assert backoff(Retry(delay=8, max_delay=8), 1, 0.0) == 4


@pytest.mark.scenario("K1")
@given(st.floats(0, 1e6), st.floats(-1e9, 1e9))
def test_a_clock_that_jumps_never_makes_a_wait_longer_than_was_decided(retry_in: float, until: float) -> None:
    assert 0 <= remaining(retry_in, until) <= retry_in


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("-7", -7), ("0", 0), ("2.5", 2.5), ("true", True), ("null", None), ("1e+16", 1e16)]
    + [(text, text) for text in ("007", "1.10", "1.0e3", "+1", "True", "nan", "1e999", "9" * 40, "", " 1", "0x10")],
)
def test_only_canonical_json_is_typed(text: str, value: Any) -> None:
    assert typed(text) == value
    assert type(typed(text)) is type(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.scenario("E12")
@given(JSON)
def test_whatever_json_can_hold_comes_back_exactly(value: Any) -> None:
    if not problem(value):
        assert parse_outputs(json.dumps({"v": value}).encode()) == {"v": value}


@pytest.mark.scenario("E11", "E12")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": float("nan")}, "outputs.a is nan"),
        ({"a": [1, {2: 3}]}, "outputs.a[1] has a key that is not text"),
        ({"a": (1, 2)}, "a tuple"),
        ({"a": {1, 2}}, "a set"),
        ({"a": b"x"}, "a bytes"),
        ({"a": 2**63}, "beyond 64 bits"),
        ({"a": "\ud800"}, "lone surrogate"),
        ({"a": AT}, "a datetime"),
    ],
)
def test_what_json_would_alter_is_refused_with_its_place(value: Any, words: str) -> None:
    assert words in problem(value)


def test_outputs_are_lines_or_objects() -> None:
    data = b'a=1\n\n{"b": [1], "c": {"d": null}}\n  e = f g=h\na=two\n'

    assert parse_outputs(data) == {"a": "two", "b": [1], "c": {"d": None}, "e": " f g=h"}


@pytest.mark.scenario("E11")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a=1\nnonsense\n", "line 2: neither name=value nor a JSON object"),
        (b"{broken\n", "line 1: not JSON"),
        (b"1a=2\n", "cannot be the name"),
        (b"\xff=1\n", "line 1: not UTF-8"),
        (b"a=" + b"x" * 1_000_001, "1000000 at most"),
        (b'{"a": NaN}', "not JSON"),
    ],
)
def test_malformed_outputs_are_named_by_line(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        parse_outputs(data)


def test_metrics_add_up_and_must_be_numbers() -> None:
    usage, nothing = parse_metrics(b'{"cost_usd": 0.5, "n": 1}\n{"cost_usd": 0.25}\n')
    assert (usage.metrics, nothing) == ({"cost_usd": 0.75, "n": 1}, ())
    for bad in (b'{"n": "1"}', b'{"n": true}', b"[1]", b'{"n": 1e999}', b'{"n": 1e308}', b"\xff", b"nonsense"):
        counted, wrong = parse_metrics(bad + b'\n{"cost_usd": 5}\n')
        assert counted.metrics == {"cost_usd": 5}
        assert "RERAIL_METRICS line 1" in wrong[0]


def test_params_are_checked_against_their_declaration() -> None:
    declared = {
        "task": Param(required=True),
        "level": Param(default="draft", choices=("draft", "final")),
        "count": Param(type="integer", default=1),
        "dry": Param(type="boolean", default=False),
    }

    assert resolve(declared, {"task": "7", "count": "3", "dry": "true"}) == (
        {"task": "7", "level": "draft", "count": 3, "dry": True},
        [],
    )
    names = {"names": Param(type="list")}
    assert resolve(names, {"names": '["a", 1]'}) == ({"names": ["a", 1]}, [])
    assert resolve(names, {"names": "a,b"})[1]
    _, problems = resolve(declared, {"level": "x", "count": "many", "extra": "1"})
    assert len(problems) == 4
    assert all(word in " ".join(problems) for word in ("extra", "task", "one of draft, final", "type integer"))


PIPELINE = Pipeline(
    name="p",
    steps=(Step(id="a", action=Run(script="make a")), Step(id="b", action=Run(script="make b"), needs=("a",))),
)


def test_the_checkpoint_of_a_completed_run() -> None:
    done: list[ev.Event] = [
        testing.started(),
        ev.StepStarted(at=AT, step="a", attempt=1),
        ev.StepCompleted(at=AT, step="a", attempt=1, duration=2.5, outputs={"n": 1}, output="ok"),
        ev.StepStarted(at=AT, step="b", attempt=1),
        ev.StepCompleted(at=AT, step="b", attempt=1, duration=1.0, metrics={"cost_usd": 1.5, "input_tokens": 10}),
        ev.RunFinished(at=AT, status="completed"),
    ]
    checkpoint = checkpoint_of(testing.header(), PIPELINE, fold(enumerate(done, 1)))

    assert checkpoint.status == "completed"
    assert (checkpoint.state.kind, checkpoint.state.step_index, checkpoint.reason) == ("completed", 1, "after_step")
    assert (checkpoint.last_completed_step, checkpoint.next_step, checkpoint.resumable) == ("b", None, False)
    assert (checkpoint.total_cost_usd, checkpoint.total_tokens) == (1.5, 10)
    assert checkpoint.steps[0].outputs == {"n": 1}


def test_the_checkpoint_of_a_failed_run_has_the_error_and_where_to_go_on() -> None:
    error = ev.Failure(
        type="ExitCode",
        message="exited with code 3",
        step="b",
        at=AT,
        exit_code=3,
        command="make b",
        stderr_tail="oh",
    )
    failed: list[ev.Event] = [
        testing.started(),
        ev.StepStarted(at=AT, step="a", attempt=1),
        ev.StepCompleted(at=AT, step="a", attempt=1, duration=2.5),
        ev.StepStarted(at=AT, step="b", attempt=1),
        ev.StepFailed(at=AT, step="b", attempt=1, duration=0.5, error=error),
        ev.RunFinished(at=AT, status="failed"),
    ]
    checkpoint = checkpoint_of(testing.header(), PIPELINE, fold(enumerate(failed, 1)))

    assert checkpoint.status == "failed"
    assert (checkpoint.state.kind, checkpoint.state.step_index, checkpoint.state.retryable) == ("failed", 1, True)
    assert checkpoint.reason == "step_failed"
    assert (checkpoint.last_completed_step, checkpoint.next_step, checkpoint.resumable) == ("a", "b", True)
    assert checkpoint.error == error
