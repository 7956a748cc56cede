"""What a place in shell text is part of, told from the text around it: a subscript, a comparison, a declaration."""

from __future__ import annotations

import re

_DECLARING = ("declare", "typeset", "local", "export", "readonly")
_COMPARED = re.compile(r"(?<!\S)-(eq|ne|lt|le|gt|ge)(?!\S)")
_SUBSCRIPT = re.compile(r"(?:[A-Za-z_]\w*|\$)\[[^\]\n]*$")


class Surroundings:
    """A script, asked about one place after another, from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._test = (0, -1, -1, False)  # looked at so far, the latest [[ … ]], whether it compares numbers

    def in_subscript(self, at: int) -> bool:
        """Whether this is inside `name[…]` or `$[…]`, which are calculated."""
        return _SUBSCRIPT.search(self._text[max(at - 200, 0) : at]) is not None

    def in_comparison(self, at: int) -> bool:
        """Whether this is inside `[[ … -gt … ]]`. Remembers what it found: a script may have thousands of expressions."""
        seen, opened, closed, compares = self._test
        newest = self._text.rfind("[[", seen, at)
        if newest >= 0:
            opened, closed = newest, self._text.find("]]", newest)
            closed = len(self._text) if closed < 0 else closed
            compares = _COMPARED.search(self._text, opened, closed) is not None
        self._test = (max(at - 1, 0), opened, closed, compares)
        return compares and opened <= at < closed

    def is_number(self, at: int) -> bool:
        """Whether the command takes what stands here for a calculation: `let`, `declare -i`."""
        words = self._command(at).split()
        return bool(words) and (
            words[0] == "let" or (words[0] in _DECLARING and any("i" in word for word in words if word[0] == "-"))
        )

    def is_name(self, at: int) -> bool:
        """Whether the shell takes what stands here for the name of a variable, subscripts and all."""
        words = (command := self._command(at)).split()
        at_word_start = command[-1:].isspace() or (command.rstrip().endswith(("'", '"')) and command[-1:] in "'\"")
        if words and words[-1].strip("'\"") == "-v":
            return True
        return bool(words) and words[0] in (*_DECLARING, "unset", "read") and at_word_start

    def _command(self, at: int) -> str:
        """The command that a place belongs to, as far as it has been read."""
        return re.split(r"[\n;&|(){}]", self._text[max(at - 1000, 0) : at])[-1]
