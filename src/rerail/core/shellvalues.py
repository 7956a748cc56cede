"""The script to run and the variables it refers to, once values are known for every expression in shell text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rerail.core.shelltext import MARK, Slot

VARIABLE = "RERAIL_VALUE_"

# How a variable V is referred to in each place: quotes are closed around it and opened again.
_REFERENCES = {"bare": '"V"', "double": "V", "single": "'\"V\"'", "ansi": "'\"V\"$'"}
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def fill(literals: Sequence[str], places: Sequence[Slot], values: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The script to run and the variables it refers to; ValueError for a value that cannot stand in its place."""
    script, variables = [literals[0]], {}
    for number, (slot, value, literal) in enumerate(zip(places, values, literals[1:], strict=True)):
        name = f"{VARIABLE}{number}"
        if MARK in value:
            raise ValueError("the value holds a NUL character, which no shell can hold")
        if slot.place in _REFERENCES:
            variables[name] = value
            script.append(_REFERENCES[slot.place].replace("V", f"${{{name}}}"))
        elif slot.place == "arithmetic":
            if not _NUMBER.fullmatch(value):
                raise ValueError(f"only a whole number can stand in arithmetic, not {value[:40]!r}")
            script.append(str(int(value)))  # 010 means ten, whatever a shell would make of it
        elif slot.place != "comment":
            script.append(value)
        script.append(literal)
    text = "".join(script)
    _check_verbatim(MARK.join(literals), text, [slot for slot in places if slot.place == "verbatim"], values)
    return text, variables


def _check_verbatim(before: str, after: str, slots_: Sequence[Slot], values: Sequence[str]) -> None:
    """What is written out into a here-document must neither end it early nor lose its tabs."""
    for slot in slots_:
        if _ends(before, slot.delimiter) != _ends(after, slot.delimiter):
            raise ValueError(f"the value makes a line {slot.delimiter!r}, which would end its here-document")
        if slot.strips_tabs and any(line.startswith("\t") for value in values for line in value.split("\n")):
            raise ValueError("the value has lines that begin with a tab, which `<<-` removes")


def _ends(text: str, delimiter: str) -> int:
    # Any line that begins with it: inside $(…) bash also ends a here-document at `EOF)`.
    return sum(line.lstrip("\t").startswith(delimiter) for line in text.split("\n"))
