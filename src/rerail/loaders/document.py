"""YAML text as a tree of nodes with line and column. Nothing is constructed, nothing is executed.

The tree is built from the parser's event stream, because composing is quadratic in nesting and recursive. Bounds on
depth, size and aliases make a hostile file fail fast.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import yaml

from rerail.loaders.source import SourceText
from rerail.loaders.syntax import Stop, SyntaxProblem, explain

MAX_BYTES = 5_000_000
MAX_DEPTH = 100
MAX_ALIASED_NODES = 10_000
MAX_NODES = 120_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FIRST_LINE = re.compile(r"(?:\n[ ]*(?=\n))*\n([ ]*)")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_TAGS = {
    None: "any",
    "!": "str",
    "tag:yaml.org,2002:str": "str",
    "tag:yaml.org,2002:map": "any",
    "tag:yaml.org,2002:seq": "any",
}


class Node(msgspec.Struct, kw_only=True):
    """Value with its position. `value` is a scalar, a list of nodes, or a dict of key nodes' text → node."""

    value: Any
    line: int
    column: int
    size: int = 1  # nodes in it, for bounding aliases
    keys: dict[str, tuple[int, int]] = {}  # of a mapping: the positions of its keys
    block: bool = False  # a text written as an indented block, which begins on the line after
    quoted: bool = False
    indent: int = 0  # of a block
    written: str = ""  # a number or a boolean as written in the file

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of a character of its text, as near as the style of writing allows."""
        before = str(self.value)[:offset]
        if self.block:
            return self.line + 1 + before.count("\n"), 1 + self.indent + offset - (before.rfind("\n") + 1)
        return self.line, self.column + (offset + self.quoted if "\n" not in before else 0)

    def plain(self) -> Any:
        """Return the value without positions."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    @property
    def kind(self) -> str:
        """Type of the value, as text for people."""
        names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
        return names.get(type(self.value), "a number")


class Malformed(Exception):
    """Document that is not usable as YAML; line and column count from 1."""

    def __init__(self, line: int, column: int, message: str, *, fix: str = "", length: int = 0) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.message = message
        self.fix = fix
        self.length = length  # of the text it is about; 0: unknown


class _Open:
    """List or mapping that is being read."""

    def __init__(self, event: Any, *, mapping: bool) -> None:
        self.node = Node(value={} if mapping else [], line=event.start_mark.line + 1, column=event.start_mark.column + 1)
        self.mapping = mapping
        self.key: Node | None = None
        self.anchor = event.anchor

    def add(self, child: Node) -> None:
        self.node.size += child.size
        if not self.mapping:
            self.node.value.append(child)
        elif self.key is None:
            if not isinstance(child.value, str | int | float | bool):
                raise Malformed(child.line, child.column, "a key must be text")
            self.key = child
        else:
            name = self.key.value if isinstance(self.key.value, str) else str(self.key.value)
            if name in self.node.value:
                first = self.node.value[name].line
                raise Malformed(self.key.line, self.key.column, f"`{name}` is given twice (first in line {first})")
            self.node.value[name] = child
            self.node.keys[name] = (self.key.line, self.key.column)
            self.key = None


def parse(text: str) -> Node:
    """Parse the one document of a file; raise Malformed at the first problem."""
    if len(text) > MAX_BYTES:
        raise Malformed(1, 1, f"the file has {len(text)} characters; {MAX_BYTES} at most")
    try:
        return _build(yaml.parse(text, Loader=_Loader), text)
    except yaml.MarkedYAMLError as error:
        raise _malformed(explain(SourceText(text), _stop(error))) from None
    except yaml.reader.ReaderError:
        raise _malformed(_unreadable(text)) from None
    except yaml.YAMLError as error:
        raise Malformed(1, 1, str(error).splitlines()[0]) from None


def _malformed(found: SyntaxProblem) -> Malformed:
    return Malformed(found.line, found.column, found.message, fix=found.help, length=found.length)


def _stop(error: yaml.MarkedYAMLError) -> Stop:
    """Return the place where the parser stopped, from 1."""
    mark, context = error.problem_mark or error.context_mark, error.context_mark
    return Stop(
        line=mark.line + 1 if mark else 1,
        column=mark.column + 1 if mark else 1,
        problem=error.problem or str(error),
        context=error.context or "",
        context_line=context.line + 1 if context else 0,
        context_column=context.column + 1 if context else 0,
    )


def _unreadable(text: str) -> SyntaxProblem:
    """Return the problem of the first character that YAML does not allow."""
    found = _NOT_ALLOWED.search(text)
    before = SourceText(text[: found.start()] if found else "").lines
    character = f"the control character U+{ord(found[0]):04X}" if found else "a character that YAML does not allow"
    fix = 'in double quotes it can be written as an escape such as "\\x07"'
    return SyntaxProblem(len(before), len(before[-1]) + 1, character, fix)


def _build(events: Any, text: str) -> Node:
    tree = _Tree()
    for event in events:
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                tree.open(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                tree.close()
            case yaml.ScalarEvent():
                tree.add(_scalar(event, text), event.anchor)
            case yaml.AliasEvent():
                tree.add(tree.aliased(event), None)
            case yaml.DocumentStartEvent() if tree.root is not None:
                raise _at(event, "a second document; a pipeline file has one")
            case _:
                pass
    return tree.root or Node(value=None, line=1, column=1)


class _Tree:
    """Tree of the events read so far."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self._stack: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._aliased_nodes = 0
        self._nodes = 0

    def open(self, event: Any) -> None:
        _check_tag(event)
        if len(self._stack) >= MAX_DEPTH:
            raise _at(event, f"nested deeper than {MAX_DEPTH} levels")
        self._stack.append(_Open(event, mapping=isinstance(event, yaml.MappingStartEvent)))

    def close(self) -> None:
        ended = self._stack.pop()
        self.add(ended.node, ended.anchor)

    def add(self, node: Node, anchor: str | None) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise Malformed(node.line, node.column, f"more than {MAX_NODES} values in one file")
        if anchor:
            self._anchors[anchor] = node
        if self._stack:
            self._stack[-1].add(node)
        else:
            self.root = node

    def aliased(self, event: Any) -> Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            raise _at(event, f"no anchor `{event.anchor}` before this")
        self._aliased_nodes += node.size
        if self._aliased_nodes > MAX_ALIASED_NODES:
            raise _at(event, f"aliases expand to more than {MAX_ALIASED_NODES} values")
        return node


def _scalar(event: Any, source: str) -> Node:
    kind = _check_tag(event)
    text: str = event.value
    value: Any = text
    if event.implicit[0] and kind == "any":
        if text == "<<":
            raise _at(event, "merge keys (`<<`) are not supported; write the values out")
        value = _plain_scalar(event, text)
    line, column = event.start_mark.line + 1, event.start_mark.column + 1
    block = event.style in ("|", ">")
    node = Node(value=value, line=line, column=column, block=block, quoted=event.style in ("'", '"'))
    if block:
        node.indent = _indent(source, event.start_mark.index)
    if value is not text and value is not None:
        node.written = text
    return node


def _indent(source: str, at: int) -> int:
    """Return the indentation of the text of a block: that of its first non-empty line."""
    match = _FIRST_LINE.match(source, source.find("\n", at))
    return len(match[1]) if match else 0


def _plain_scalar(event: Any, text: str) -> Any:
    """Convert a scalar by the YAML 1.2 core schema: `no`, `on`, 012 and 12:30 are text, unlike in YAML 1.1."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        if len(text) > 18:
            raise _at(event, "a number of more than 18 digits; quote it if it is text")
        return text if text.lstrip("+-").startswith("0") and text.lstrip("+-") != "0" else int(text)
    if _FLOAT.fullmatch(text):
        value = float(text)
        if not math.isfinite(value):
            raise _at(event, "a number too large")
        return value
    return text


def _check_tag(event: Any) -> str:
    try:
        return _TAGS[event.tag]
    except KeyError:
        fix = "quote a value that begins with `!`" + ("; in an expression write `not`" if event.tag[:1] == "!" else "")
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        message = f"the tag `{event.tag}` is not supported"
        raise Malformed(line, column, message, fix=fix, length=min(len(event.tag), 100)) from None


def _at(event: Any, message: str) -> Malformed:
    return Malformed(event.start_mark.line + 1, event.start_mark.column + 1, message)
