"""Quoting context: the shell construct around a place in a script: a subscript, a comparison, a declaration.

This is the first line of defence where shells evaluate their arguments. The second does not depend on it: see
`evaluation`.
"""

from __future__ import annotations

import re

_DECLARING = ("declare", "typeset", "local", "export", "readonly")
_NAMING = (*_DECLARING, "unset", "read", "mapfile", "readarray", "let")
_NAME_OPTIONS = {("-v", "test"), ("-v", "["), ("-v", "[["), ("-v", "printf"), ("-p", "wait"), ("-np", "wait")}
_GLUED_OPTIONS = {("-v", "printf"), ("-p", "wait")}
_PREFIXES = frozenset("if then else elif while until do ! time command builtin exec env coproc {".split())
_COMPARED = re.compile(r"(?<!\S)-(eq|ne|lt|le|gt|ge)(?!\S)")
_ENDS_WORD = re.compile(r"[\s;&|<>]")
_SUBSCRIBED = re.compile(r"(?:^|[=(])[A-Za-z_]\w*\[|^\$\[|\(\[|=\(?\[")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_NUMBERED = re.compile(r"(?:S?RANDOM|OPTIND|SECONDS|LINENO|HISTCMD)\+?=$")
_SHELL = r"(?:^|[\s;&|(){}`])(?:\S*/|busybox[ \t]+)?(?:ba|da|a|k|mk|z)?sh(?:[ \t]+[-+][\w-]+|[ \t]+-o[ \t]+\w+)*"
_BEFORE_EVALUATED = re.compile(
    rf"(?:{_SHELL}[ \t]+-\w*c(?:[ \t]+--)?|(?:^|[\s;&|(){{}}`])(?:trap(?:[ \t]+--)?|eval(?:[ \t]+[^;&|\n]*)?))[ \t]+\Z"
)
_BEFORE_SHELL_INPUT = re.compile(rf"{_SHELL}(?:[ \t]+[\w./-]+)*[ \t]*<<-?[ \t]*\Z")

WINDOW = 4000  # characters that are searched around a place


class QuotingState:
    """Context of places in a script, asked for one after another, from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._test = (0, -1, -1, False)  # searched so far, the latest [[ … ]], whether it compares numbers

    def in_subscript(self, at: int) -> bool:
        """Return whether this is inside `name[…]` or `$[…]`, which are calculated."""
        return _open_bracket(_ENDS_WORD.split(self._text[max(at - WINDOW, 0) : at])[-1])

    def in_test(self, at: int) -> bool:
        """Return whether this is inside `[[ … ]]`."""
        _, opened, closed, _ = self._look(at)
        return opened >= 0 and opened <= at < closed

    def in_comparison(self, at: int) -> bool:
        """Return whether this is inside `[[ … -gt … ]]`, where both sides are calculated."""
        _, opened, closed, compares = self._look(at)
        return compares and opened <= at < closed

    def _look(self, at: int) -> tuple[int, int, int, bool]:
        # Remembers its findings: a script may have thousands of expressions.
        seen, opened, closed, compares = self._test
        newest = self._text.rfind("[[", seen, at)
        while newest >= 0 and self._text[newest + 2 : newest + 3] == ":":  # a character class, as in [[:alpha:]]
            newest = self._text.rfind("[[", seen, newest)
        if newest >= 0:
            opened = newest
            end = self._text.find(" ]]", opened, opened + WINDOW)
            closed = min(opened + WINDOW, len(self._text)) if end < 0 else end
            compares = _COMPARED.search(self._text, opened, closed) is not None
        self._test = (max(at - 1, 0), opened, closed, compares)
        return self._test

    def is_number(self, at: int, quoted_from: int) -> bool:
        """Return whether the command calculates its argument here: `let`, `declare -i`, RANDOM."""
        command = self._command(at, quoted_from)
        words = _words(command)
        if not words:
            return False
        integer = words[0] in _DECLARING and any("i" in word for word in words if word[0] == "-")
        return words[0] == "let" or integer or _NUMBERED.search(command) is not None

    def is_name(self, at: int, quoted_from: int) -> bool:
        """Return whether the shell takes this place for the name of a variable, subscripts and all."""
        command = self._command(at, quoted_from)
        words = _words(command)
        if not words:
            return False
        last = "" if command[-1:].isspace() else command.split()[-1]
        before = words if not last else words[:-1]
        if before and (before[-1], words[0]) in _NAME_OPTIONS:
            return True
        if any(words[0] == command and last.strip("'\"") == option for option, command in _GLUED_OPTIONS):
            return True
        if words[0] not in _NAMING or (before and before[-1][:1] in "<>"):
            return False
        return not _ASSIGNMENT.match(last.strip("'\"")) and "<" not in last

    def is_evaluated(self, at: int, quoted_from: int) -> bool:
        """Return whether this is part of a text that the script has evaluated: with `eval`, `trap` or a shell's `-c`.

        An expression that is the whole text is meant to be run.
        """
        start = _word_start(self._text, quoted_from)
        before = _BEFORE_EVALUATED.search(self._text[max(start - WINDOW, 0) : start])
        if before is None:
            return False
        quote = self._text[quoted_from : quoted_from + 1] if quoted_from < at else ""
        whole = start == quoted_from and at == quoted_from + len(quote)
        after = self._text[at + 1 : at + 2 + len(quote)]
        ends = after[: len(quote)] == quote and (_ENDS_WORD.match(after[len(quote) :]) or len(after) == len(quote))
        return not (whole and ends and ("eval" not in before[0] or before[0].split() == ["eval"]))

    def is_shell_input(self, at: int) -> bool:
        """Return whether a shell reads the here-document whose delimiter is here."""
        return _BEFORE_SHELL_INPUT.search(self._text[max(at - WINDOW, 0) : at]) is not None

    def _command(self, at: int, quoted_from: int) -> str:
        """Return the command that a place belongs to, up to the place; quoted parts are not taken apart."""
        begin = max(quoted_from - WINDOW, 0)
        return (
            re.split(r"[\n;&|(){}]", self._text[begin:quoted_from].replace("\\\n", " "))[-1] + self._text[quoted_from:at]
        )


def _words(command: str) -> list[str]:
    """Return the words of a command from the one that names it."""
    words = command.split()
    while words and (words[0] in _PREFIXES or _ASSIGNMENT.match(words[0])):
        if len(words) > 1 and words[0] == "time" and words[1] == "-p":
            words.pop(0)
        words.pop(0)
    return words


def _word_start(text: str, at: int) -> int:
    """Return the beginning of the word that continues here, quoted parts included."""
    first = max(at - WINDOW, 0)
    while at > first and not _ENDS_WORD.match(text[at - 1]):
        opened = text.rfind(text[at - 1], first, at - 1) if text[at - 1] in "'\"" else -1
        at = opened if opened >= 0 else at - 1
    return at


def _open_bracket(word: str) -> bool:
    return word.count("[") > word.count("]") and _SUBSCRIBED.search(word) is not None


def is_arithmetic(text: str, at: int) -> bool:
    """Return whether `$((` is closed by `))`, as arithmetic is; else it is a subshell in a substitution."""
    depth, end = 2, min(len(text), at + 5 * WINDOW)
    while at < end:
        char = text[at]
        if char in "'\"":
            at = text.find(char, at + 1)
            if at < 0:
                return True
        elif char == "\\":
            at += 1
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth == 1:
                return text.startswith(")", at + 1)
        at += 1
    return True
