"""Expressions that cannot be parsed, explained: operators of other languages, brackets and quotes that do not match."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|&&|\|\||===|!==|==|!=|<=|>=|=>|=~|\?\?|\?\.|\$\{\{|\{\{|\}\}|\{%|%\}|\*\*|//"""
    r"""|[A-Za-z_]\w*|\d[\w.]*|\S""",
    re.DOTALL,
)
_FOREIGN = {
    "&&": "use `and`",
    "||": "use `or`",
    "!": "use `not`",
    "=": "use `==` to compare",
    "===": "use `==`",
    "!==": "use `!=`",
    "=~": "there are no patterns; use `'…' in …`, `.startswith('…')` or `.endswith('…')`",
    "=>": "functions cannot be defined here",
    "??": "use `| default(…)`",
    "?.": "use `.` with `| default(…)`",
    "?": "use `A if CONDITION else B`",
    ";": "one expression only; do the rest in a step",
    "$": "names are written without `$`",
    "@": "there is no `@`",
    "#": "there are no comments in expressions",
    "`": "texts are in '…' or \"…\"",
    "\\": "a `\\` is only allowed in a quoted text",
    "${{": "write it without `${{`: this is an expression already",
    "{{": "write it without `{{`: this is an expression already",
    "{%": "there are no statements, only expressions",
    "%}": "there are no statements, only expressions",
}
_OPEN = {"(": ")", "[": "]", "{": "}"}
_OPERATORS = frozenset("+ - * / // % ** ~ | . , == != < > <= >= and or not in is if else".split())
_UNARY = ("not", "-", "+")


class Finding(NamedTuple):
    """Problem with an expression, or a warning: the piece it is about, and the help."""

    message: str
    help: str = ""
    offset: int = 0
    piece: str = ""  # '': all of it
    code: str = "expression"


def explain(expression: str, reason: str) -> Finding:
    """Return the problem with an expression that has no syntax tree; `reason` is the parser's, the last resort."""
    tokens = list(_tokens(expression))
    opened: list[tuple[str, int]] = []
    for number, (token, at) in enumerate(tokens):
        before = tokens[number - 1][0] if number else ""
        if token in _FOREIGN and not (token == "=" and opened and opened[-1][0] == "("):  # f(method='floor')
            return Finding(f"`{token}` is no operator of expressions", _FOREIGN[token], at, token)
        if token in ("'", '"'):
            return Finding(f"the quote {token} is never closed", f"close it with {token}", at, token)
        if token in _OPEN:
            opened.append((token, at))
        elif token in _OPEN.values() or token == "}}":
            if not opened or _OPEN[opened[-1][0]] != token[0]:
                return Finding(f"`{token}` closes nothing", "remove it, or open it before", at, token)
            opened.pop()
        if (token in _OPERATORS and not number and token not in _UNARY) or (before, token) == (".", "."):
            return Finding(f"a value is missing before `{token}`", "", at, token)
        if before in _OPERATORS and (token in _OPEN.values() or (token in _OPERATORS and token not in _UNARY)):
            beside = f"`{before} {token}`" if token in _OPERATORS and before != token else f"`{before}`"
            if not (before == "is" or token == "." or before == "," or (before, token) == ("not", "in")):
                return Finding(f"a value is missing after {beside}", "", at, token)
        if _is_value(before) and _is_value(token):
            fix = "put an operator between them: `and`, `or`, `==`, `~` …; quote a text"
            return Finding(f"two values follow each other: `{before[:40]} {token[:40]}`", fix, at, token)
    if opened:
        bracket, at = opened[-1]
        return Finding(f"`{bracket}` is never closed", f"close it with `{_OPEN[bracket]}`", at, bracket)
    if tokens and tokens[-1][0] in _OPERATORS:
        token, at = tokens[-1]
        return Finding(f"a value is missing after `{token}`", "", at, token)
    return Finding(f"not an expression: {reason}")


def _tokens(expression: str) -> Iterator[tuple[str, int]]:
    for match in _TOKEN.finditer(expression):
        yield match[0], match.start()


def _is_value(token: str) -> bool:
    """Return whether a token is a name, a number or a text, and nothing else."""
    return bool(token) and (token[0].isalnum() or token[0] in "_'\"") and token not in _OPERATORS and token != "for"
