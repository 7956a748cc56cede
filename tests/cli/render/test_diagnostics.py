"""Frames of errors: the exact lines, and no text of a file that steers the terminal, fills it, or shows a secret."""

from __future__ import annotations

import re

import pytest

from rerail.cli.render.diagnostics import MAX_FRAMES, framed, shown_message, total
from rerail.cli.render.table import columns
from rerail.cli.render.terminal import Terminal
from rerail.core.masking import Mask
from rerail.errors import Diagnostic, PipelineInvalid
from rerail.loaders.yaml import load_pipeline


def frames(text: str, look: Terminal = Terminal()) -> str:  # noqa: B008 - a struct that nothing changes
    with pytest.raises(PipelineInvalid) as caught:
        load_pipeline(text.encode(), "p.yaml")
    return "\n".join(framed(caught.value.diagnostics, look))


def test_a_key_a_need_and_an_expression() -> None:
    text = "steps:\n  - {id: a, run: x}\n  - id: b\n    run: echo ${{ params.x }}\n    nedes: [a]\n    needs: [aa]\n"

    assert frames(text) == (
        "p.yaml:4:26: error: no param `x`\n"
        "  |\n"
        "4 |     run: echo ${{ params.x }}\n"
        "  |                          ^\n"
        "  = help: there are no params\n"
        "\n"
        "p.yaml:5:5: error: unknown key `nedes`\n"
        "  |\n"
        "5 |     nedes: [a]\n"
        "  |     ^^^^^\n"
        "  = help: did you mean `needs`?\n"
        "\n"
        "p.yaml:6:13: error: unknown step `aa`\n"
        "  |\n"
        "6 |     needs: [aa]\n"
        "  |             ^^\n"
        "  = help: did you mean `a`?"
    )


def test_a_place_in_a_block_a_folded_text_and_a_quoted_one() -> None:
    text = (
        "steps:\n  - run: |\n      echo one\n      echo ${{ nope }}\n"
        "  - run: >-\n      echo two\n\n      and ${{ gone }}\n  - run: 'it''s ${{ lost }}'\n"
    )
    found = re.findall(r"p.yaml:([0-9:]+): error: unknown name `(\w+)`", frames(text))

    assert found == [("4:16", "nope"), ("8:15", "gone"), ("9:21", "lost")]


def test_tabs_and_wide_characters_are_under_their_mark() -> None:
    lines = frames("steps: [{run: '日本語\tx ${{ nope }}'}]\n").splitlines()

    assert columns(lines[2].partition("nope")[0]) == columns(lines[3].partition("^")[0])


def test_a_long_line_is_cut_around_the_mark() -> None:
    lines = frames(
        "steps: [{run: '" + "x" * 5000 + " ${{ nope }} " + "y" * 5000 + "'}]\n", Terminal(width=80)
    ).splitlines()

    assert all(columns(line) <= 80 for line in lines[1:])
    assert lines[2].partition("nope")[0][:5] + lines[2][-1] == "1 | ……"
    assert columns(lines[2].partition("nope")[0]) == columns(lines[3].partition("^")[0])


def test_a_list_of_keys_is_wrapped_where_the_width_is_known() -> None:
    text = "steps: [{run: x, zzz: 1}]"

    assert all(len(line) <= 60 for line in frames(text, Terminal(width=60)).splitlines())
    assert len(frames(text).splitlines()) == 5


def test_colours_are_only_where_there_are_any() -> None:
    text = "steps: [{runn: x}]"

    assert "\033[31merror:\033[0m" in frames(text, Terminal(colour=True))
    assert "\033" not in frames(text)
    assert re.sub(r"\033\[\d*m", "", frames(text, Terminal(colour=True))) == frames(text)


@pytest.mark.scenario("V2")
def test_no_line_of_a_file_steers_the_terminal() -> None:
    shown = frames('steps: [{run: x, "\u202eabc": 1, needs: [a]}]\n')

    assert all(line.isprintable() for line in shown.splitlines())


def test_a_secret_is_masked_in_the_line_and_the_mark_stays_in_place() -> None:
    one = Diagnostic(
        "bad `s3cr3t-value`", "p", 1, 30, 34, source="run: echo s3cr3t-value and the nope", help="not s3cr3t-value"
    )
    masked = one.masked(Mask(["s3cr3t-value"]).text)

    assert "s3cr3t" not in "\n".join(framed([masked], Terminal()))
    assert masked.source == "run: echo *** and the nope"
    assert one.source[one.column - 1 : one.end - 1] == masked.source[masked.column - 1 : masked.end - 1]


def test_many_errors_have_their_first_line_only_and_are_counted() -> None:
    found = [Diagnostic("bad", "p.yaml", line, 1, 2, source="x") for line in range(1, MAX_FRAMES + 11)]
    lines = framed(found, Terminal())

    assert sum("error: bad" in line for line in lines) == len(found)
    assert sum("^" in line for line in lines) == MAX_FRAMES
    assert total(found) == f"{len(found)} errors in p.yaml"
    assert total([*found, found[0]._replace(severity="warning")]).endswith("30 errors, 1 warning in p.yaml")
    assert total(found[:1]) == ""


def test_an_error_without_a_place_has_the_same_form() -> None:
    assert shown_message("no run 'x'") == ["rerail: error: no run 'x'"]
