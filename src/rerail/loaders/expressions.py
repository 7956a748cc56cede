"""Checks of expressions when a file is loaded: syntax, names, and places in shell text, each with its line."""

from __future__ import annotations

from typing import Any

from rerail.core.expressions import foreign, language, placeholders
from rerail.core.expressions.language import VisibleNames
from rerail.core.expressions.render import ITEM
from rerail.core.expressions.syntax import Finding
from rerail.core.shell import lexer
from rerail.loaders.document import Node
from rerail.loaders.fields import Fields, Problems

MAX_SCRIPT = 500_000
MAX_PLACEHOLDERS = 2_000
COMPLEX = 30  # work of an expression that is more than names with dots, in units of one that is not
MAX_WORK = 120_000
MAX_PIECE = 100  # characters of an expression in a message


class Expressions:
    """Expressions of one step; `found` says whether there are any."""

    def __init__(self, problems: Problems, visible: VisibleNames) -> None:
        self._problems = problems
        self._visible = visible
        self.found = False

    def script(self, node: Node | None) -> None:
        """Check a text that a shell will read."""
        if node is None or not isinstance(node.value, str):
            return
        self.found = self.found or ITEM in node.value  # it gets a value, too, which is checked before it runs
        self._warn_of_foreign(node, in_shell=True)
        if not placeholders.has_placeholders(node.value):
            return
        if len(node.value) > MAX_SCRIPT:
            self._problems.add(node, f"a script with expressions may have {MAX_SCRIPT} characters, not {len(node.value)}")
            return
        if node.value.count(placeholders.OPEN) > MAX_PLACEHOLDERS:
            self._problems.add(node, f"more than {MAX_PLACEHOLDERS} expressions in one script")
            return
        if not self.text(node):
            return
        pieces = placeholders.split(node.value)
        try:
            lexer.slots([literal for literal, _, _ in pieces])
        except lexer.NotAllowedHere as error:
            offset = pieces[error.index][2]
            piece = node.value[offset : offset + MAX_PIECE].partition("}}")[0] + "}}"
            self._problems.add_piece(node, offset, piece, f"{error}", code="expression")

    def text(self, node: Node | None) -> bool:
        """Check a text that may hold expressions; return whether it does, with their braces closed."""
        if node is None or not isinstance(node.value, str) or not placeholders.has_placeholders(node.value):
            return False
        try:
            pieces = placeholders.split(node.value)
        except placeholders.UnclosedPlaceholder as error:
            self._problems.add_piece(
                node, error.offset, placeholders.OPEN, str(error), fix="close it with `}}`", code="expression"
            )
            return False
        self.found = True
        for _, expression, offset in pieces:
            if expression is not None and not self._problems.many:
                inside = offset + len(placeholders.OPEN)
                self._check(expression, node, inside + node.value[inside:].find(expression[:1]))
        return True

    def everything(self, node: Node | None) -> None:
        """Check all texts in a value."""
        if node is None:
            return
        children: list[Any] = []
        if isinstance(node.value, dict):
            children = list(node.value.values())
        elif isinstance(node.value, list):
            children = node.value
        else:
            self._warn_of_foreign(node, in_shell=False)
            self.text(node)
        for child in children:
            self.everything(child)

    def _warn_of_foreign(self, node: Node, *, in_shell: bool) -> None:
        """Warn about expressions of other tools, which would be printed as they are, or end in an error of the shell."""
        if not self._problems.strict or not isinstance(node.value, str):
            return
        for one in foreign.found(node.value, self._visible.params, in_shell=in_shell):
            self._problems.warn(node, one.offset, one.piece, one.message, fix=one.help, code=one.code)

    def bare(self, fields: Fields, key: str) -> str:
        """Check and return a field that is one expression, with or without its braces."""
        node = fields.get(key)
        if node is None:
            return ""
        if isinstance(node.value, bool):
            return "true" if node.value else "false"
        text = fields.text(key).strip()
        if text.startswith(placeholders.OPEN) and text.endswith(placeholders.CLOSE):
            text = text[len(placeholders.OPEN) : -len(placeholders.CLOSE)].strip()
        self._check(text, node, str(node.value).find(text))
        self.found = True
        return text

    def _check(self, expression: str, node: Node, offset: int) -> None:
        before = self._problems.work
        # Parsing one takes longer than in proportion to its length.
        self._problems.work += 1 if language.is_path(expression) else COMPLEX + len(expression) ** 2 // 50
        if before > MAX_WORK or self._problems.many:
            return
        problem = language.check(expression, self._visible)
        if self._problems.work > MAX_WORK and problem is None:
            problem = Finding("more expressions than can be checked in one file; use fewer, or simpler ones")
        if problem is not None:
            self._problems.add_piece(
                node,
                offset + problem.offset,
                problem.piece or expression,
                problem.message if problem.piece else f"{problem.message}{_shown(expression)}",
                fix=problem.help,
                code=problem.code,
            )
        elif self._problems.strict:
            for one in language.warnings(expression, self._visible):
                piece = one.piece or expression
                self._problems.warn(node, offset + one.offset, piece, one.message, fix=one.help, code=one.code)


def _shown(expression: str) -> str:
    """Return an expression for the end of a message, where it is short."""
    return f": `{expression}`" if 0 < len(expression) <= MAX_PIECE else ""
