"""The outline of a pipeline: stages by an independent rule, commands bounded and masked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rerail.core.masking import Mask
from rerail.core.model import Map, Pipeline, Run, Source, Step
from rerail.core.outline import MAX_COMMAND, outline_of, stages_of


def step(name: str, *needs: str, script: str = "true", when: str = "") -> Step:
    return Step(id=name, action=Run(script=script), needs=needs, when=when)


@st.composite
def graphs(draw: st.DrawFn) -> list[Step]:
    count = draw(st.integers(1, 8))
    names = [f"s{at}" for at in range(count)]
    made = [
        step(name, *sorted(draw(st.sets(st.sampled_from(names[:at])) if at else st.just(set()))))
        for at, name in enumerate(names)
    ]
    return draw(st.permutations(made))


@given(graphs())
def test_the_stage_is_the_longest_way_to_a_step(steps: list[Step]) -> None:
    needs = {one.id: one.needs for one in steps}

    def longest(name: str) -> int:
        return max([1 + longest(need) for need in needs[name]], default=1)

    assert stages_of(steps) == {name: longest(name) for name in needs}
    ordered = [one.stage for one in outline_of(Pipeline(name="p", steps=tuple(steps)), Mask()).steps]
    assert ordered == sorted(ordered)


def test_commands_are_their_first_lines_bounded_and_masked() -> None:
    steps = (
        step("a", script="\n  first hunter22 \nsecond\n", when="env.X == 'hunter22'"),
        step("b", script="x" * 1000),
        step("c", script="one"),
    )
    a, b, c = outline_of(Pipeline(name="p", steps=steps), Mask(["hunter22"])).steps

    assert (a.command, "hunter22" in a.when) == ("first *** …", False)
    assert len(b.command) == MAX_COMMAND
    assert c.command == "one"


def test_the_steps_of_a_map_have_stages_of_their_own() -> None:
    body = (step("m/x"), step("m/y", "m/x"))
    several = Step(id="m", needs=("a",), action=Map(over=Source(kind="list", value=[1]), steps=body))
    single = Step(id="n", action=Map(over=Source(kind="list", value=[1]), steps=(step("n"),), single=True))
    found = {one.step: one for one in outline_of(Pipeline(name="p", steps=(step("a"), several, single)), Mask()).steps}

    assert found["m"].stage == 2
    assert [(one.step, one.stage) for one in found["m"].steps] == [("m/x", 1), ("m/y", 2)]
    assert found["n"].steps == ()
