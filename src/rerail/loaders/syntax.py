"""Text that is not YAML, explained: from the place where the parser stopped and the text there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rerail.loaders.source import SourceText

_LINE = re.compile(r"(?P<indent>[ \t]*)(?P<dashes>(?:-[ \t]+)*)(?:(?P<key>[^\s'\"#\[\]{},][^:#]*?)\s*:(?:\s+|$))?")
_LONGEST_QUOTED = 60
_NAMES = {"[": "a list", "{": "a mapping"}
_CLOSING = {"[": "]", "{": "}"}
_NEVER_FIRST = "@`%,]}*&!|>"
_TEXTS = ("run", "content", "prompt", "message", "description", "command")  # keys with a text of several lines
LOOK_BACK = 500  # lines above that are read for their indentation


class SyntaxProblem(NamedTuple):
    """Problem of the syntax with its place; `length` is that of the text it is about, 0 if unknown."""

    line: int
    column: int
    message: str
    help: str = ""
    length: int = 1


class Stop(NamedTuple):
    """Place where the parser stopped, the beginning of the construct it was in, and its own words for both."""

    line: int
    column: int
    problem: str
    context: str = ""
    context_line: int = 0
    context_column: int = 0


class _Line(NamedTuple):
    """Line of a block: its indentation, its key and the value on it."""

    indent: int
    begin: int  # column of its key or value, from 0: after its dashes
    key: str
    value: str
    at: int  # of the value, from 0


def explain(source: SourceText, stop: Stop) -> SyntaxProblem:
    """Return the problem at the place where the parser stopped, in words for people."""
    text = source.line(stop.line)
    here = _line(text)
    char = text[stop.column - 1 : stop.column]
    blank = text[: len(text) - len(text.lstrip())]
    if "\t" in blank and stop.column <= len(blank) + 1:
        column = blank.index("\t") + 1
        return SyntaxProblem(stop.line, column, "tabs cannot indent YAML", "use spaces", len(blank) - column + 1)
    if "quoted scalar" in stop.context or "quoted scalar" in stop.problem:
        return _quoted(source, stop)
    for found in (_value(stop, here, char), _flow(source, stop, char), _layout(source, stop, here, char)):
        if found is not None:
            return found
    return SyntaxProblem(stop.line, stop.column, f"not YAML: {stop.problem}", "", 0)


def _quoted(source: SourceText, stop: Stop) -> SyntaxProblem:
    quote = source.line(stop.context_line)[stop.context_column - 1 : stop.context_column]
    if "escape" in stop.problem:
        fix = "in double quotes `\\` begins an escape: use single quotes, or write `\\\\`"
        return SyntaxProblem(stop.line, stop.column, "unknown escape in double quotes", fix, 2)
    fix = f"close it with {quote}"
    return SyntaxProblem(stop.context_line, stop.context_column, f"the quote {quote} is never closed", fix, 1)


def _value(stop: Stop, here: _Line, char: str) -> SyntaxProblem | None:
    """Explain a value that has to be quoted because of its beginning, or of text after its end."""
    value, at = here.value, here.at
    if not value:
        return None
    inside = stop.column - 1 - at
    if "block scalar" in stop.context and value[0] in "|>":
        fix = f"put the text on the lines below `{value[0]}`, or quote it all{_example(here)}"
        return SyntaxProblem(stop.line, stop.column, f"text after `{value[0]}`, which begins a block", fix, 0)
    if value[0] in "'\"" and inside > 0:
        fix = _block(here) if _example(here) == "" else f"quote all of it{_example(here)}, or {_block(here)}"
        twice = f"; inside '…' a quote is written ''{''}" if value[0] == "'" else ""
        return SyntaxProblem(stop.line, stop.column, f"text after the closing {value[0]}", fix + twice, 0)
    if value[0] in _NAMES and inside > 0 and "flow" not in stop.context:
        message = f"text after `{_CLOSING[value[0]]}`: a value that begins with `{value[0]}` is {_NAMES[value[0]]}"
        return SyntaxProblem(stop.line, stop.column, message, f"quote it{_example(here)}, or {_block(here)}", 0)
    if (0 <= inside <= 1 and value[0] in _NEVER_FIRST) or (value[0] == "!" and inside > 0):
        first = "a backtick" if value[0] == "`" else f"`{value[0]}`"
        return SyntaxProblem(stop.line, at + 1, f"a value cannot begin with {first}", f"quote it{_example(here)}", 1)
    if inside == 0 and re.match(r"[-?]\s", value) and here.key:
        message = f"a value cannot begin with `{value[0]} `"
        return SyntaxProblem(stop.line, at + 1, message, f"quote it{_example(here)}, or put a list on the lines below", 1)
    if char == ":" and here.key and inside > 0 and "flow" not in stop.context:
        fix = f"quote it{_example(here)}, or {_block(here)}"
        return SyntaxProblem(stop.line, stop.column, "`: ` inside a plain value", fix, 1)
    return None


def _flow(source: SourceText, stop: Stop, char: str) -> SyntaxProblem | None:
    """Explain a problem inside `[…]` or `{…}`."""
    if "flow" not in stop.context:
        return None
    text = source.line(stop.line)
    here, outer = _line(text), _line(source.line(stop.context_line))
    begin = source.line(stop.context_line)[stop.context_column - 1 : stop.context_column]
    end = _CLOSING.get(begin, "]")
    around = f"{begin}…{end}"
    at = stop.column - 1
    if char == "{" and text[max(at - 2, 0) : at].endswith("$"):
        start = at - 1
    elif char == "{" and text[max(at - 1, 0) : at + 1] == "{{" and text[at - 2 : at - 1] == "$":
        start = at - 2
    else:
        start = -1
    if start >= 0:
        value = text[_begin(text, start) :]
        close = value.find("}}", start - _begin(text, start))
        whole = value[: close + 2] if close >= 0 else ""
        message = f"`${{{{ … }}}}` inside `{around}` must be quoted"
        fix = f"write {_in_quotes(whole)}" if _in_quotes(whole) else "quote the whole value"
        return SyntaxProblem(stop.line, start + 1, message, fix, len("${{"))
    if char == ":" and not (stop.line > stop.context_line and here.indent <= outer.indent):
        fix = f"quote the value, or write the keys on lines of their own instead of in `{around}`"
        return SyntaxProblem(stop.line, stop.column, f"`: ` inside a plain value in `{around}`", fix)
    if char and char in "]}" and char != end:
        return SyntaxProblem(stop.line, stop.column, f"`{begin}` is closed by `{char}`", f"close it with `{end}`")
    if not char or stop.line != stop.context_line:
        message = f"`{begin}` is never closed"
        return SyntaxProblem(stop.context_line, stop.context_column, message, f"close it with `{end}`")
    fix = f"put `,` between the values, or quote a value that has one of `{begin}{end},#` in it"
    return SyntaxProblem(stop.line, stop.column, f"a `,` or `{end}` is missing before this", fix, 0)


def _layout(source: SourceText, stop: Stop, here: _Line, char: str) -> SyntaxProblem | None:
    """Explain a line whose indentation or `:` does not fit the lines above."""
    if "simple key" in stop.context:
        return _without_colon(source, stop.context_line)
    first = here.begin == stop.column - 1 or here.indent == stop.column - 1 or char == ":"
    if not first:
        return None
    above = list(_above(source, stop.line))
    if not above:
        return None
    number, last = above[0]
    if not last.key and last.value and not source.line(number).lstrip().startswith("-"):
        return _without_colon(source, number)
    width = max(len(source.line(stop.line).strip()), 1)
    if here.indent > last.begin and last.value:
        message = f"indented by {here.indent}, line {number} above by {last.begin}"
        more = f", or write `{last.key}: |` to give it several lines" if last.key in _TEXTS else ""
        return SyntaxProblem(stop.line, here.begin + 1, message, f"indent it by {last.begin}{more}", width)
    levels: dict[int, bool] = {}
    for _, line in above:
        if not levels or line.indent < min(levels):
            if line.begin > line.indent:
                levels.setdefault(line.begin, False)
            levels[line.indent] = line.begin > line.indent
    if levels.get(here.indent) and here.begin == here.indent:
        fix = f"begin it with `- `, or indent it by {here.indent + 2} to put it into the entry above"
        return SyntaxProblem(stop.line, here.begin + 1, "an entry of this list begins with `- `", fix, width)
    known = sorted(levels)
    alike = [level for level in known if levels[level] == (here.begin > here.indent)]  # entries, or keys
    near = min(alike or known, key=lambda level: abs(level - here.indent))
    message = f"indented by {here.indent}, which fits no line above ({' or '.join(map(str, known[-4:]))})"
    return SyntaxProblem(stop.line, here.indent + 1, message, f"indent it by {near}", width)


def _without_colon(source: SourceText, number: int) -> SyntaxProblem:
    text = source.line(number)
    line = _line(text)
    words = text[line.begin :].strip()
    if words in ("---", "..."):
        return SyntaxProblem(number, 1, "a second document; a pipeline file has one", "remove this line", 3)
    key, _, rest = words.partition(" ")
    fix = f"write `{key[:40]}: {rest[:40]}`" if re.fullmatch(r"[\w-]+", key) and rest else "a key ends with `:`"
    if re.fullmatch(r"[\w-]+", words):
        fix = f"write `{words[:40]}:`"
    return SyntaxProblem(number, line.begin + 1, f"`{words[:40]}` has no `:`", fix, max(len(words), 1))


def _above(source: SourceText, number: int) -> Iterator[tuple[int, _Line]]:
    """Yield the lines above that are neither empty nor comments, the nearest first."""
    for above in range(number - 1, max(number - LOOK_BACK, 0), -1):
        text = source.line(above)
        if text.strip() and not text.lstrip().startswith("#"):
            yield above, _line(text)


def _line(text: str) -> _Line:
    match = _LINE.match(text[:2000])
    assert match is not None  # every part of it may be empty
    key = match["key"] or ""
    return _Line(
        indent=len(match["indent"]),
        begin=match.end("dashes"),
        key=key,
        value=text[match.end() :].rstrip(),
        at=match.end(),
    )


def _begin(text: str, inside: int) -> int:
    """Return the beginning of the plain value in `{…}` that a position is in."""
    at = max(
        text.rfind(mark, 0, inside) + len(mark) for mark in (": ", ", ", "[", "{ ") if text.rfind(mark, 0, inside) >= 0
    )
    return at + len(text[at:inside]) - len(text[at:inside].lstrip())


def _example(here: _Line) -> str:
    """Return `: key: 'value'`, the line as it would be right, where that is short; else ''."""
    quoted = _in_quotes(here.value)
    return f": `{here.key}: {quoted}`" if quoted and here.key else f": `{quoted}`" if quoted else ""


def _in_quotes(value: str) -> str:
    if not value or len(value) > _LONGEST_QUOTED or not value.isprintable():
        return ""
    if "'" not in value:
        return f"'{value}'"
    return f'"{value}"' if '"' not in value and "\\" not in value else ""


def _block(here: _Line) -> str:
    return f"write it below `{here.key or 'run'}: |`"
