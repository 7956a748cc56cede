"""Values into shell text: each arrives as one word, unharmed, wherever it stands, and is never expanded twice.

A value is handed to the shell as a variable; what is written into the script is a reference that fits its place:
bare, in quotes, in a here-document. So no value is ever parsed as shell. The two places where text must be written
out are arithmetic, where even a variable's content is executed (`a[$(cmd)]`) and only numbers are allowed, and
here-documents with a quoted delimiter, where nothing is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from rerail.core.shellplaces import Surroundings

Place = Literal["bare", "double", "single", "ansi", "arithmetic", "verbatim", "comment"]

MARK = "\0"  # cannot occur in a script

_LEADING = ("if", "then", "else", "elif", "while", "until", "do", "for", "!", "time")
_BLANK = " \t\n;&|()<>"
_DEFAULTING = re.compile(r"[#!]?[\w@*?$!-]+(\[[^\]]*\])?:?[-=?+]")
_SLICING = re.compile(r"!?[\w@*?$!#-]+(\[[^\]]*\])?:(?![-=?+])")
_ORDINARY = re.compile(r"[A-Za-z0-9_./,:@%+]+")
_ORDINARY_QUOTED = re.compile(r'[^\0\\"$`]+')
_ORDINARY_SINGLE = re.compile(r"[^\0\\']+")
_HEREDOC = re.compile(r"<<(-?)[ \t]*")


class Slot(msgspec.Struct, frozen=True):
    """Where an expression stands; `delimiter` is of the here-document it is written out in."""

    place: Place
    delimiter: str = ""
    strips_tabs: bool = False


class Misplaced(ValueError):
    """An expression where no value can be delivered safely; `index` counts the expressions of the script."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(why)
        self.index = index


class _Frame(msgspec.Struct):
    kind: str  # script, sub, double, single, ansi, param, arithmetic, heredoc
    start: int
    quoted: bool = False  # for param: whether it stands inside double quotes
    depth: int = 0  # open parentheses
    cases: int = 0  # open `case … in`


def slots(literals: Sequence[str]) -> list[Slot]:
    """The place of the expression after each literal but the last; raises Misplaced."""
    return _Lexer("".join(literal + MARK for literal in literals[:-1]) + literals[-1]).slots()


class _Lexer:
    """Walks a script once, keeping track of quotes, substitutions and here-documents."""

    def __init__(self, text: str, frame: str = "script") -> None:
        self._text = text
        self._at = 0
        self._stack = [_Frame(frame, 0)]
        self._pending: list[tuple[str, bool, bool]] = []  # delimiter, quoted, tabs stripped
        self._slots: list[Slot] = []
        self._word_start = True
        self._command_start = True
        self._around = Surroundings(text)

    def slots(self) -> list[Slot]:
        while self._at < len(self._text):
            frame = self._stack[-1]
            match frame.kind:
                case "script" | "sub":
                    self._bare(frame)
                case "single" | "ansi":
                    self._single(frame)
                case "param":
                    self._param(frame)
                case "arithmetic" | "bracket":
                    self._arithmetic(frame)
                case _:
                    self._double(frame)
        return self._slots

    def _bare(self, frame: _Frame) -> None:
        char = self._text[self._at]
        if char == MARK:
            self._hole("bare")
            self._word_start = self._command_start = False
        elif char == "#" and self._word_start:
            self._comment()
        elif char == "\n":
            self._at += 1
            self._bodies()
            self._word_start = self._command_start = True
        elif self._text.startswith("((", self._at) and self._command_start:
            self._push("arithmetic", 2)
        elif char == "<" and self._heredoc():
            self._word_start = True
        elif char in "()":
            self._parenthesis(frame, char)
        elif char in _BLANK:
            self._at += 1
            self._word_start = True
            self._command_start = char not in " \t<>" or self._command_start
        elif self._text.startswith("\\\n", self._at):
            self._at += 2  # nothing: what follows stands where the backslash stood
        elif not self._quoting(char):
            self._command_start = self._word_start and self._keyword(frame)
            self._word_start = False
            self._at = self._skip(_ORDINARY, self._at + 1)

    def _quoting(self, char: str) -> bool:
        """Backslash, quotes and substitutions, as they are outside quotes."""
        if char == "\\":
            self._escape()
        elif char == "'":
            self._push("single", 1)
        elif char == '"':
            self._push("double", 1)
        elif self._text.startswith("$'", self._at):
            self._push("ansi", 2)
        elif not self._substitution(char, quoted=False):
            return False
        self._word_start = self._command_start = False
        return True

    def _substitution(self, char: str, *, quoted: bool) -> bool:
        """`$((`, `$[`, `$(`, `${` and backticks, which are the same inside double quotes."""
        if char == "`":
            self._backticks()
        elif self._text.startswith("$$", self._at):
            self._at += 2
        elif self._text.startswith("$[", self._at):
            self._push("bracket", 2)
        elif self._text.startswith("$((", self._at) and self._is_arithmetic(self._at + 3):
            self._push("arithmetic", 3)
        elif self._text.startswith("$(", self._at):
            self._push("sub", 2)
            self._word_start = self._command_start = True
        elif self._text.startswith("${", self._at):
            self._push("param", 2)
            self._stack[-1].quoted = quoted
        else:
            return False
        return True

    def _single(self, frame: _Frame) -> None:
        char = self._text[self._at]
        if char == MARK:
            self._hole("single" if frame.kind == "single" else "ansi")
        elif char == "\\" and frame.kind == "ansi":
            self._escape()
        else:
            self._at += 1
            if char == "'":
                self._pop()
            else:
                self._at = self._skip(_ORDINARY_SINGLE, self._at)

    def _double(self, frame: _Frame) -> None:
        """Inside double quotes, or in a here-document that expands (where a double quote is nothing special)."""
        char = self._text[self._at]
        if char == MARK:
            self._hole("double")
        elif char == "\\":
            self._escape()
        elif char == '"' and frame.kind == "double":
            self._at += 1
            self._pop()
        elif not self._substitution(char, quoted=True):
            self._at = self._skip(_ORDINARY_QUOTED, self._at + 1)

    def _skip(self, ordinary: re.Pattern[str], at: int) -> int:
        """The next character that may mean something: most do not, and are not looked at one by one."""
        match = ordinary.match(self._text, at)
        return match.end() if match else at

    def _param(self, frame: _Frame) -> None:
        char = self._text[self._at]
        if char == MARK:
            self._hole(self._place_in_param(frame))
        elif char == "}":
            self._at += 1
            self._pop()
        elif char == "\\":
            self._escape()
        elif char == "'" and not frame.quoted:
            self._push("single", 1)
        elif char == '"':
            self._push("double", 1)
        elif not self._substitution(char, quoted=frame.quoted):
            self._at += 1

    def _place_in_param(self, frame: _Frame) -> Place:
        before = self._text[frame.start : self._at]
        if before.count("[") > before.count("]") or _SLICING.match(before):
            return "arithmetic"  # subscripts and offsets are evaluated
        if not re.match(r"[#!]?[\w@*?$!-]", before) or re.fullmatch(r"[#!]?\w*", before):
            raise Misplaced(len(self._slots), "an expression cannot be the name of a shell variable")
        return "double" if frame.quoted and _DEFAULTING.match(before) else "bare"

    def _arithmetic(self, frame: _Frame) -> None:
        char = self._text[self._at]
        opening, closing, end = ("(", ")", "))") if frame.kind == "arithmetic" else ("[", "]", "]")
        if char == MARK:
            self._hole("arithmetic")
        elif char == opening:
            frame.depth += 1
            self._at += 1
        elif char == closing and frame.depth:
            frame.depth -= 1
            self._at += 1
        elif self._text.startswith(end, self._at):
            self._at += len(end)
            self._pop()
        elif not self._substitution(char, quoted=True):
            self._at += 1

    def _is_arithmetic(self, at: int) -> bool:
        """Whether what `$((` opens is closed by `))`, as arithmetic is; else it is a subshell in a substitution."""
        depth = 2
        while at < len(self._text):
            char = self._text[at]
            if char in "'\"":
                at = self._text.find(char, at + 1)
                if at < 0:
                    return True
            elif char == "\\":
                at += 1
            elif char in "()":
                depth += 1 if char == "(" else -1
                if depth == 1:
                    return self._text.startswith(")", at + 1)
            at += 1
        return True

    def _backticks(self) -> None:
        end = self._at + 1
        while end < len(self._text) and self._text[end] != "`":
            end += 2 if self._text[end] == "\\" else 1
        if MARK in self._text[self._at : end]:
            raise Misplaced(len(self._slots), "an expression cannot stand in `backticks`; use $(…)")
        self._at = end + 1

    def _parenthesis(self, frame: _Frame, char: str) -> None:
        self._at += 1
        self._word_start = self._command_start = True
        if char == "(":
            frame.depth += 1
        elif frame.cases and frame.depth == 0:
            pass  # ends a pattern of `case`
        elif frame.depth:
            frame.depth -= 1
        elif frame.kind == "sub":
            self._pop()

    def _keyword(self, frame: _Frame) -> bool:
        """Take note of the word that begins a command; whether another command may follow it directly."""
        match = re.match(r"\w+|!|\{(?=\s)", self._text[self._at : self._at + 8])
        word = match[0] if match else ""
        if word == "{":
            return True
        if not self._command_start:
            return False
        if word == "case":
            frame.cases += 1
        elif word == "esac":
            frame.cases = max(frame.cases - 1, 0)
        if word in _LEADING:
            self._at += len(word) - 1
            return True
        return False

    def _comment(self) -> None:
        end = self._text.find("\n", self._at)
        end = end if end >= 0 else len(self._text)
        self._slots += [Slot("comment")] * self._text.count(MARK, self._at, end)
        self._at = end

    def _calculates(self) -> bool:
        """Whether the shell would evaluate what stands here as arithmetic, in which even a variable's content runs."""
        for frame in self._stack:
            if frame.kind == "arithmetic":
                return True
            before = self._text[frame.start : self._at]
            if frame.kind == "param" and (before.count("[") > before.count("]") or _SLICING.match(before)):
                return True
        if self._around.in_subscript(self._at) or self._around.in_comparison(self._at):
            return True
        return self._around.is_number(self._at)

    # Here-documents

    def _heredoc(self) -> bool:
        match = _HEREDOC.match(self._text, self._at)
        if self._text.startswith("<<<", self._at):
            self._at += 3
            return True
        if match is None or self._around.in_subscript(self._at):
            return False  # also in a[1<<2], which shifts
        at, delimiter, quoted = match.end(), "", False
        while at < len(self._text) and self._text[at] not in _BLANK:
            char = self._text[at]
            if char in "'\"":
                quoted = True
                end = self._text.find(char, at + 1)
                end = len(self._text) if end < 0 else end
                delimiter += self._text[at + 1 : end]
                at = end + 1
            elif char == "\\":
                quoted = True
                delimiter += self._text[at + 1 : at + 2]
                at += 2
            else:
                delimiter += char
                at += 1
        word = self._text[match.end() : at]
        if "$" in word or ("\\" in word.strip("\\") and ('"' in word or "'" in word)):
            raise Misplaced(len(self._slots), "expressions need here-documents with a plain delimiter")
        if MARK in delimiter:
            raise Misplaced(len(self._slots), "an expression cannot be the delimiter of a here-document")
        self._at = at
        self._pending.append((delimiter, quoted, bool(match[1])))
        return True

    def _bodies(self) -> None:
        """Consume the bodies of the here-documents that the line just ended has opened."""
        for delimiter, quoted, strip in self._pending:
            body_end, after = self._body_end(delimiter, strip=strip, joined=not quoted)
            body = self._text[self._at : body_end]
            if quoted:
                self._slots += [Slot("verbatim", delimiter, strip)] * body.count(MARK)
            else:
                inner = _Lexer(body, "heredoc")
                inner._slots = self._slots
                inner.slots()
            self._at = after
        self._pending.clear()

    def _body_end(self, delimiter: str, *, strip: bool, joined: bool) -> tuple[int, int]:
        at, continued = self._at, False
        while at < len(self._text):
            end = self._text.find("\n", at)
            end = len(self._text) if end < 0 else end
            line = self._text[at:end]
            if not continued and (line.lstrip("\t") if strip else line) == delimiter:
                return at, min(end + 1, len(self._text))
            continued = joined and (len(line) - len(line.rstrip("\\"))) % 2 == 1
            at = end + 1
        return len(self._text), len(self._text)

    def _hole(self, place: Place) -> None:
        if self._text[self._at - 1 : self._at] == "\\":
            raise Misplaced(len(self._slots), "an expression cannot follow a backslash")
        if self._calculates():
            place = "arithmetic"
        elif place != "arithmetic" and self._around.is_name(self._at):
            raise Misplaced(len(self._slots), "an expression cannot be the name of a shell variable")
        self._slots.append(Slot(place))
        self._at += 1

    def _escape(self) -> None:
        self._at += 1 if self._text[self._at + 1 : self._at + 2] == MARK else 2

    def _push(self, kind: str, width: int) -> None:
        self._at += width
        self._stack.append(_Frame(kind, self._at))

    def _pop(self) -> None:
        if len(self._stack) > 1:
            self._stack.pop()
        self._word_start = self._command_start = False
