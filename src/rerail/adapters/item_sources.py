"""Sources of the items of a map: files, patterns, expressions. Commands are executed by the engine."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any

import msgspec

from rerail import walker
from rerail.core.expressions import jsonpath, language
from rerail.core.expressions.language import ExpressionError, Scope
from rerail.core.expressions.render import pattern
from rerail.core.item_list import MAX_ITEMS, ItemListError, ItemListStopped
from rerail.core.model import Source

MAX_FILE = 256 * 1024 * 1024


def read(source: Source, scope: Scope, work_dir: str, is_stopping: Callable[[], bool] = lambda: False) -> Any:
    """Return the present value of a source; raise ItemListError, and ItemListStopped once `is_stopping` says so."""
    work_dir = os.path.join(work_dir, source.directory)
    try:
        match source.kind:
            case "list":
                return language.render_value(source.value, scope)
            case "expression":
                return language.render_value(source.value, scope)
            case "glob":
                return _paths(_patterns(source.value, scope), work_dir, is_stopping)
            case "lines":
                return _lines(language.render(source.value, scope), work_dir)
            case "json":
                return _json(language.render(source.value, scope), source.path, work_dir)
            case _:
                raise ItemListError("a command has to be run")
    except ExpressionError as error:
        raise ItemListError(f"`over`: {error}") from None


def _patterns(text: str, scope: Scope) -> list[str]:
    """Return the patterns of a `glob`.

    A glob that is one expression and nothing else takes them from it: a text, or a list of texts. Within a longer one a
    value is a name: wildcards in it are literal.
    """
    if not language.is_one_expression(text):
        return [pattern(text, scope)]
    value = language.render_value(text, scope)
    patterns = value if isinstance(value, list) else [value]
    for one in patterns:
        if not isinstance(one, str) or not one.strip() or "\0" in one:
            raise ItemListError(
                f"`glob` must evaluate to a pattern or a list of patterns, not {language.as_text(one)[:60]!r}"
            )
    return patterns


def _paths(patterns: list[str], work_dir: str, is_stopping: Callable[[], bool]) -> list[str]:
    found: dict[str, None] = {}
    for wanted in patterns:
        end = "/" if wanted.endswith("/") else ""  # then only directories are meant
        try:
            for path in walker.matching(work_dir, wanted, tolerant=True, is_stopping=is_stopping):
                if not end or os.path.isdir(os.path.join(work_dir, path)):
                    found[path + end] = None
                if len(found) > MAX_ITEMS:
                    raise ItemListError(f"more than {MAX_ITEMS} paths match {wanted}")
        except walker.TooManyEntries as error:
            raise ItemListError(f"`over`: {error}") from None
        except walker.Stopped:
            raise ItemListStopped from None
    return sorted(found)


def _lines(path: str, work_dir: str) -> list[str]:
    try:
        text = _bytes(path, work_dir).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ItemListError(f"{path} is not UTF-8 (byte {error.start})") from None
    return [line for line in (raw.removesuffix("\r") for raw in text.split("\n")) if line]


def _json(path: str, inside: str, work_dir: str) -> Any:
    data = _bytes(path, work_dir)
    try:
        document = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ItemListError(f"{path} is not JSON: {error}") from None
    return jsonpath.find(document, inside) if inside else document


def _bytes(path: str, work_dir: str) -> bytes:
    full = os.path.join(work_dir, path)
    try:
        fd = os.open(full, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ItemListError(f"{path} is not a regular file")
            data = file.read(MAX_FILE + 1)
    except ItemListError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ItemListError(f"{path} cannot be read: {why}") from None
    if len(data) > MAX_FILE:
        raise ItemListError(f"{path} has more than {MAX_FILE} bytes")
    return data
