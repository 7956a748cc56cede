"""Quoting: the script to run and the variables it refers to, once every expression in it has a value.

A value is always passed as a variable, never written into the script (but for numbers where the shell calculates).
So whatever the lexer makes of a script, no value is parsed as shell. Shells still evaluate the content of a variable
where they calculate, where they take names, and where a script asks for it. The lexer knows most of these places;
`evaluation` does not depend on that.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from rerail.core.shell.evaluation import danger, is_expanded
from rerail.core.shell.lexer import MARK, Slots

VARIABLE = "RERAIL_VALUE_"

# How a variable V is referred to in each place: quotes are closed around it and opened again.
_REFERENCES = {"bare": '"V"', "double": "V", "single": "'\"V\"'", "ansi": "'\"V\"$'"}
MAX_INT64 = 2**63 - 1

# How people would write a value in each place.
_LEGIBLE: Mapping[str, Callable[[str], str]] = {
    "bare": shlex.quote,
    "double": lambda value: re.sub(r'([\\\\"$`])', r"\\\1", value),
    "single": lambda value: value.replace("'", "'\\''"),
}

_NUMBER = re.compile(r"-?[0-9]{1,40}")
_LONE_DOLLAR = re.compile(r"(?:^|[^\\$])(?:\\\\)*(?:\$\$)*\$$")

_PLAIN = re.compile(r"[\w@%+=:,./-]*")

_WHY_EVALUATED = (
    "the value would be parsed as shell, because it is part of a text that the script has evaluated (`eval`, `trap`,"
    " `sh -c`). Put it into a variable and let that text refer to the variable in quotes"
)


class ValueRefused(ValueError):
    """Value that would be delivered unharmed but could run; `index` counts the expressions, `env` names a variable."""

    def __init__(self, why: str, *, index: int = -1, env: str = "") -> None:
        super().__init__(why)
        self.index = index
        self.env = env


def fill(places: Slots, values: Sequence[str], env: Mapping[str, str] = {}) -> tuple[str, dict[str, str]]:
    """Return the script to run and the variables it refers to; raise ValueRefused for a value unsafe in its place.

    `env` has the evaluated variables of the environment: their values can run just as well.
    """
    literals = places.text.split(MARK)
    script, variables = [literals[0]], {}
    delivered = []
    for number, (place, value, literal) in enumerate(zip(places.slots, values, literals[1:], strict=True)):
        name = f"{VARIABLE}{number}"
        if MARK in value:
            raise ValueRefused("the value holds a NUL character, which no shell can hold", index=number)
        if place == "arithmetic":
            script.append(_number(value, script[-1], number))
        elif place != "comment":
            if number in places.evaluated and not _PLAIN.fullmatch(value):
                raise ValueRefused(_WHY_EVALUATED, index=number)
            if place in ("bare", "double") and _LONE_DOLLAR.search(script[-1]):
                script[-1] = script[-1][:-1] + "\\$"  # it would make `$$` or `$"` of what follows
            variables[name] = value
            delivered.append(number)
            script.append(_REFERENCES[place].replace("V", f"${{{name}}}"))
        script.append(literal)
    text = "".join(script)
    for name in env:
        if is_expanded(name, env[name]):
            raise ValueRefused(
                "the value holds a command, which a shell would run: it expands this variable by itself", env=name
            )
    found = danger(text, [*variables.values(), *env.values()])
    if found is not None and found.index < len(delivered):
        raise ValueRefused(found.why, index=delivered[found.index])
    if found is not None:
        raise ValueRefused(found.why, env=list(env)[found.index - len(delivered)])
    return text, variables


def legible(places: Slots, values: Sequence[str]) -> str:
    """Return the script for people: every value stands where its expression stood, quoted as its place asks for."""
    literals = places.text.split(MARK)
    pieces = [literals[0]]
    for place, value, literal in zip(places.slots, values, literals[1:], strict=True):
        pieces += [_LEGIBLE.get(place, str)(value), literal]
    return "".join(pieces)


def _number(value: str, before: str, index: int) -> str:
    """Write a number for shell arithmetic, without blanks, which would end a word of `let`; raise ValueRefused."""
    if not _NUMBER.fullmatch(value) or abs(int(value)) > MAX_INT64:
        raise ValueRefused(
            "only a whole number of up to 64 bits can stand where the shell calculates (use `| int` or `| round | int`)",
            index=index,
        )
    number = int(value)  # 010 means ten, whatever a shell would make of it
    if number < 0 and before[-1:] == ":":
        return f"0{number}"  # ${x:-5} would be a default
    if number < 0 and before[-1:] in ("-", "+") and before[-2:] not in (":-", ":+"):
        return f"~{-number - 1}"  # x--5 would count down; this is the same number
    return str(number)
