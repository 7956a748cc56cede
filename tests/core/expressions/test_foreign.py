"""Expressions of other tools in texts: noticed where they cannot be meant for another program."""

from __future__ import annotations

import pytest

from rerail.core.expressions import foreign


@pytest.mark.parametrize(
    ("text", "piece", "ours"),
    [
        ("echo {{ params.topic }}", "{{ params.topic }}", "params.topic"),
        ("echo {{.topic}}", "{{.topic}}", "params.topic"),
        ("echo {{ topic }}", "{{ topic }}", "params.topic"),
        ("echo {{inputs.parameters.x}}", "{{inputs.parameters.x}}", "params.x"),
        ("echo {{ workflow.input.x | upper }}", "{{ workflow.input.x | upper }}", "params.x"),
        ("echo ${item.x}", "${item.x}", "item.x"),
        ("echo ${params.topic}", "${params.topic}", "params.topic"),
        ("echo $params.topic", "$params.topic", "params.topic"),
        ("echo {{item}}", "{{item}}", "item"),
    ],
)
def test_an_expression_of_another_tool_is_found(text: str, piece: str, ours: str) -> None:
    (one,) = foreign.found(text, ("topic",), in_shell=True)

    assert one.piece == piece
    assert text[one.offset :].startswith(piece)
    assert one.help == f"write `${{{{ {ours} }}}}`"


@pytest.mark.parametrize(
    "text",
    [
        "echo ${{ params.topic }}",
        "docker inspect --format '{{.State.Status}}' x",
        "gh pr list --template '{{range .}}{{.title}}{{end}}'",
        "for item in *; do mv $item.txt x; done",
        "params=x; echo $params.old",
        "echo ${name} ${name%.txt} ${#item[@]} $item",
        "awk '{{ print $1 }}'",
        "echo '{{ unknown }}'",
    ],
)
def test_what_other_programs_read_is_left_alone(text: str) -> None:
    assert list(foreign.found(text, ("topic",), in_shell=True)) == []
