"""The script to run and the variables it refers to, once values are known for every expression in shell text.

A value is always handed over as a variable, never written into the script (but for numbers where the shell calculates).
So whatever the lexer makes of a script, no value is parsed as shell. What is left is that shells evaluate the content of
a variable where they calculate and where they take names: `a[$(cmd)]` runs. The lexer knows most of these places; for
the others a value that could run there is refused in any script that calculates or takes names at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rerail.core.shelltext import MARK, Places

VARIABLE = "RERAIL_VALUE_"

# How a variable V is referred to in each place: quotes are closed around it and opened again.
_REFERENCES = {"bare": '"V"', "double": "V", "single": "'\"V\"'", "ansi": "'\"V\"$'"}
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_LONE_DOLLAR = re.compile(r"(?:^|[^\\$])(?:\\\\)*(?:\$\$)*\$$")

_EVALUATING = re.compile(
    r"\(\(|\$\[|\[\[|\w\[|=\(|\$\{!|\$\{[^}\n]*?(?::(?![-=?+])|@P)|\s-v\s|\bwait\s+-p\b|\b(?:RANDOM|OPTIND|SECONDS|LINENO|HISTCMD)="
    r"|\b(?:let|declare|typeset|local|export|readonly|read|unset|mapfile|readarray|getopts)\b"
)
_DECLARING = r"\b(?:declare|typeset|local|export|readonly)\b"
_LISTING = re.compile(rf"{_DECLARING}[^\n]*?\s-\w*[aA]|=\([\s\S]*?{_DECLARING}")
_NAMED_BY_SCRIPT = re.compile(
    r"(?:\b(?:unset|let|read|mapfile|readarray|printf\s+-v|test\s+-v|\[\s+-v)|"
    rf"{_DECLARING})[^\n;&|]*?\w\[[^\]\n]*[$\0]|@P\}}"
)
_ARITHMETIC = re.compile(r"[\w\s+*/%<>=!~&|^?:,()\[\]$@#-]*", re.ASCII)
_BRACKETS_AND_COMMANDS = re.compile(r"\[|\]|\$\(|`|\$\{")
_COMMAND = re.compile(r"\$\(|`|\$\{")
_LIST = re.compile(r"\s*\((?:[^$`<>]|[$<>](?!\())*(?:[$<>]\(|`)")
_TWO_WORDS = re.compile(r"\w\s+\w")


WHY_REFUSED = (
    "the value looks like a subscript or a list with a command in it, which a shell may run in a script that calculates"
    " or takes names; hand it over in a file"
)


class Refused(ValueError):
    """A value that would be delivered unharmed but could run where the shell evaluates variables."""


def may_run(value: str, script: str) -> bool:
    """Whether a shell could execute something in this value, should it ever calculate with it or take it for a name."""
    if _LIST.match(value) and _LISTING.search(script):
        return True
    if _COMMAND.search(value) and _NAMED_BY_SCRIPT.search(script):
        return True  # as in unset "m[$value]"
    return _has_live_subscript(value) and _EVALUATING.search(script) is not None


def _has_live_subscript(value: str) -> bool:
    """Whether it is arithmetic as far as a name with a subscript that holds a command."""
    arithmetic = _ARITHMETIC.match(value)
    depth, opening = 0, 0
    for found in _BRACKETS_AND_COMMANDS.finditer(value, 0, arithmetic.end() + 1 if arithmetic else 0):
        if found[0] == "[":
            opening = opening if depth else found.start()
            depth += 1
        elif found[0] == "]":
            depth = max(depth - 1, 0)
        elif depth:
            before = value[:opening]
            # Two words in a row are no arithmetic: prose never gets that far.
            return (before[-1:].isidentifier() and not _TWO_WORDS.search(before)) or before[-1:].isdigit()
    return False


def fill(places: Places, values: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The script to run and the variables it refers to; ValueError for a value that cannot stand in its place."""
    literals = places.text.split(MARK)
    script, variables = [literals[0]], {}
    for number, (place, value, literal) in enumerate(zip(places.slots, values, literals[1:], strict=True)):
        name = f"{VARIABLE}{number}"
        if MARK in value:
            raise ValueError("the value holds a NUL character, which no shell can hold")
        if place == "arithmetic":
            script.append(_number(value, script[-1]))
        elif place != "comment":
            if may_run(value, places.text):
                raise Refused(WHY_REFUSED)
            if place in ("bare", "double") and _LONE_DOLLAR.search(script[-1]):
                script[-1] = script[-1][:-1] + "\\$"  # it would make `$$` or `$"` of what follows
            variables[name] = value
            script.append(_REFERENCES[place].replace("V", f"${{{name}}}"))
        script.append(literal)
    return "".join(script), variables


def _number(value: str, before: str) -> str:
    if not _NUMBER.fullmatch(value):
        raise ValueError("only a whole number can stand where the shell calculates")
    number = str(int(value))  # 010 means ten, whatever a shell would make of it
    return f" {number}" if number[0] == "-" and before[-1:] in (":", "-", "+") else number
