"""Text of others cannot steer the terminal."""

from __future__ import annotations

import pytest

from rerail.text import nearest
from tests.conftest import Project


@pytest.mark.scenario("V2")
@pytest.mark.parametrize(
    "steering",
    [
        "\\033]0;title\\007\\033[2J",  # the title, and an empty screen
        "\\033]52;c;cm0gLXJm\\007",  # what is pasted next
        "\\033]8;;http://x\\033\\\\link",  # a link that says something else
        "\\033Pq#0\\033\\\\",  # a device control string
        "\\302\\233 2J",  # the same control in one character
        "\\r\\033[A\\033[K",  # the line above, written anew
        "\\342\\200\\256",  # from right to left
    ],
)
def test_what_a_step_prints_cannot_steer_the_terminal(project: Project, steering: str) -> None:
    (project.root / "steer").write_text(f"{steering}pwned", encoding="utf-8")
    project.pipeline("steps: [{id: a, run: 'printf \"$(cat steer)\" >&2; exit 1'}]")
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    shown = [failed.stderr, *(project.rerail(*command, "r").stdout for command in (["show"], ["history"]))]

    for text in shown:
        assert not set("\x1b\x9b\x07\r\u202e") & set(text), text
    assert "pwned" in failed.stderr


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("neds", "needs"),
        ("nedes", "needs"),
        ("stpes", "steps"),
        ("aa", "a"),
        ("b", ""),
        ("wait", ""),
        ("setup", ""),
        ("", ""),
    ],
)
def test_a_slip_of_the_keyboard_is_recognised_and_no_other_word(word: str, name: str) -> None:
    assert nearest(word, ["needs", "steps", "with", "a"]) == name
