"""Shell lexer: the quoting of every place in a script at which an expression stands.

A value is passed to the shell as a variable; the script gets a reference that fits its place: bare, in quotes, in a
here-document. So each value arrives as one word, unharmed, is never expanded twice and never parsed as shell. Where the
shell calculates even a variable's content is executed (`a[$(cmd)]`): only numbers are allowed there. A here-document
with a quoted delimiter expands nothing: it is rewritten as one that does, with everything else in it escaped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from rerail.core.shell.context import QuotingState, is_arithmetic

Place = Literal["bare", "double", "single", "ansi", "arithmetic", "comment"]

MARK = "\0"  # cannot occur in a script

_LEADING = ("if", "then", "else", "elif", "while", "until", "do", "!", "time")
MAX_NESTED = 50
MAX_DOCUMENTS = 200
MAX_IN_BRACES = 10_000  # characters of one ${…}
_BLANK = " \t\n;&|()<>"
_DEFAULTING = re.compile(r"[#!]?[\w@*?$!-]+(\[[^\]]*\])?:?[-=?+]")
_SLICING = re.compile(r"!?[\w@*?$!#-]+(\[[^\]]*\])?:(?![-=?+])")
_ORDINARY = re.compile(r"[A-Za-z0-9_./,:@%+]+")
_ORDINARY_QUOTED = re.compile(r'[^\0\\"$`]+')
_ORDINARY_SINGLE = re.compile(r"[^\0\\']+")


class Slots(msgspec.Struct, frozen=True):
    """Script with a placeholder character for every expression, and the place of each.

    `evaluated` has the numbers of those that are part of a text which the script has evaluated.
    """

    text: str
    slots: list[Place]
    evaluated: frozenset[int] = frozenset()


class NotAllowedHere(ValueError):
    """Expression where no value can be delivered safely; `index` counts the expressions of the script."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(why)
        self.index = index


class _Frame(msgspec.Struct):
    kind: str  # script, sub, group, double, single, ansi, param, arithmetic, bracket, heredoc
    start: int
    quoted: bool = False  # for param: whether it stands inside double quotes
    depth: int = 0  # open parentheses of arithmetic
    cases: int = 0  # open `case … in`
    pending: tuple[Document, ...] = ()  # here-documents whose bodies begin after this line


def slots(literals: Sequence[str]) -> Slots:
    """Return the place of the expression after each literal but the last; raise NotAllowedHere."""
    lexer = _Lexer("".join(literal + MARK for literal in literals[:-1]) + literals[-1])
    found = lexer.slots()
    text = lexer.text
    for start, end, new in sorted(lexer.edits, reverse=True):
        text = text[:start] + new + text[end:]
    return Slots(text, found, frozenset(lexer.evaluated))


class _Lexer:
    """Lexer that reads a script once and keeps track of quotes, substitutions and here-documents."""

    def __init__(self, text: str, at: int = 0, end: int | None = None, frame: str = "script") -> None:
        self.text = text
        self.edits: list[tuple[int, int, str]] = []  # replacements: start, end, new text
        self.evaluated: set[int] = set()
        self._text = text
        self._end = len(text) if end is None else end
        self._at = at
        self._stack = [_Frame(frame, at)]
        self._slots: list[Place] = []
        self._documents = 0
        self._word_start = True
        self._command_start = True
        self._around = QuotingState(text)

    def slots(self) -> list[Place]:
        while self._at < self._end:
            frame = self._stack[-1]
            match frame.kind:
                case "script" | "sub" | "group":
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
            self._placeholder("bare")
            self._word_start = self._command_start = False
        elif (
            char == "#" and self._word_start and not (self._text[self._at - 1] == "(" and self._around.in_test(self._at))
        ):
            self._comment()
        elif char == "\n":
            self._at += 1
            self._bodies(frame)
            self._word_start = self._command_start = True
        elif char == "<" and self._heredoc(frame):
            self._word_start = True
        elif char in "()":
            self._parenthesis(frame, char)
        elif char in _BLANK:
            self._at += 1
            self._word_start = True
            self._command_start = char not in " \t<>" or self._command_start
        elif self._text.startswith("\\\n", self._at):
            self._at += 2  # a line continuation: the next character takes this place
        elif not self._quoting(char):
            self._command_start = self._word_start and self._keyword(frame)
            self._word_start = False
            self._at = self._skip(_ORDINARY, self._at + 1)

    def _quoting(self, char: str) -> bool:
        """Consume a backslash, a quote or a substitution outside quotes; return False if there is none."""
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
        if self._stack[-1].kind != "sub" or self._at != self._stack[-1].start:  # a command begins right after $(
            self._word_start = self._command_start = False
        return True

    def _substitution(self, char: str, *, quoted: bool) -> bool:
        """Consume `$((`, `$[`, `$(`, `${` or backticks, which are the same inside double quotes."""
        if char == "`":
            self._backticks()
        elif self._text.startswith("$$", self._at):
            self._at += 2
        elif self._text.startswith("$[", self._at):
            self._push("bracket", 2)
        elif self._text.startswith("$((", self._at) and is_arithmetic(self._text, self._at + 3):
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
            self._placeholder("single" if frame.kind == "single" else "ansi")
        elif char == "\\" and frame.kind == "ansi":
            self._escape()
        else:
            self._at += 1
            if char == "'":
                self._pop()
            else:
                self._at = self._skip(_ORDINARY_SINGLE, self._at)

    def _double(self, frame: _Frame) -> None:
        """Read on inside double quotes, or in a here-document that expands (where a double quote is not special)."""
        char = self._text[self._at]
        if char == MARK:
            self._placeholder("double")
        elif char == "\\":
            self._escape()
        elif char == '"' and frame.kind == "double":
            self._at += 1
            self._pop()
        elif not self._substitution(char, quoted=True):
            self._at = self._skip(_ORDINARY_QUOTED, self._at + 1)

    def _skip(self, ordinary: re.Pattern[str], at: int) -> int:
        """Return the next character that may be special: most are not, and are skipped at once."""
        match = ordinary.match(self._text, at)
        return match.end() if match else at

    def _param(self, frame: _Frame) -> None:
        char = self._text[self._at]
        if char == MARK:
            self._placeholder(self._place_in_param(frame))
        elif char == "}":
            self._at += 1
            self._pop()
        elif char == "\\":
            self._escape()
        elif char == "'" and (not frame.quoted or not _DEFAULTING.match(self._text, frame.start, self._at)):
            self._push("single", 1)  # patterns are quoted like this even inside double quotes
        elif char == '"':
            self._push("double", 1)
        elif not self._substitution(char, quoted=frame.quoted):
            self._at += 1

    def _place_in_param(self, frame: _Frame) -> Place:
        before = self._text[frame.start : self._at]
        if before.count("[") > before.count("]") or _SLICING.match(before):
            return "arithmetic"  # subscripts and offsets are evaluated
        if not re.match(r"[#!]?[\w@*?$!-]", before) or re.fullmatch(r"[#!]?\w*", before):
            raise NotAllowedHere(len(self._slots), "an expression cannot be the name of a shell variable")
        return "double" if frame.quoted and _DEFAULTING.match(before) else "bare"

    def _arithmetic(self, frame: _Frame) -> None:
        char = self._text[self._at]
        opening, closing, end = ("(", ")", "))") if frame.kind == "arithmetic" else ("[", "]", "]")
        if char == MARK:
            self._placeholder("arithmetic")
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

    def _backticks(self) -> None:
        end = self._at + 1
        while end < len(self._text) and self._text[end] != "`":
            end += 2 if self._text[end] == "\\" else 1
        if MARK in self._text[self._at : end]:
            raise NotAllowedHere(len(self._slots), "an expression cannot be in `backticks`; use $(…)")
        self._at = end + 1

    def _parenthesis(self, frame: _Frame, char: str) -> None:
        double = char == "(" and self._word_start and self._text.startswith("((", self._at)
        if double and is_arithmetic(self._text, self._at + 2):
            self._push("arithmetic", 2)
            return
        if char == "(":
            self._push("group", 1)
        elif frame.cases:
            self._at += 1  # ends a pattern of `case`
        else:
            self._at += 1
            if frame.kind in ("sub", "group"):
                self._pop()
        self._word_start = self._command_start = char == "(" or frame.kind != "sub"

    def _keyword(self, frame: _Frame) -> bool:
        """Note the word that begins a command; return whether another command may follow it directly."""
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
        self._slots += ["comment"] * self._text.count(MARK, self._at, end)
        self._at = end

    def _calculates(self, quoted_from: int, *, in_document: bool) -> bool:
        """Return whether the shell evaluates this place as arithmetic, in which even a variable's content runs."""
        for frame in self._stack:
            if frame.kind in ("arithmetic", "bracket"):
                return True
            before = self._text[frame.start : self._at] if frame.kind == "param" else ""
            if before.count("[") > before.count("]") or _SLICING.match(before):
                return True
        if in_document:
            return False
        if self._around.is_number(self._at, quoted_from):
            return True
        # In quotes a bracket or a comparison is text, unless the quotes only hold the value.
        alone = quoted_from >= self._at - 1
        return alone and (self._around.in_subscript(self._at) or self._around.in_comparison(self._at))

    # Here-documents

    def _heredoc(self, frame: _Frame) -> bool:
        if self._text.startswith("<<<", self._at):
            self._at += 3
            return True
        if not self._text.startswith("<<", self._at) or self._around.in_subscript(self._at):
            return False  # a[1<<2] shifts
        try:
            document = opening(self._text, self._at)
        except ValueError as error:
            raise NotAllowedHere(len(self._slots), str(error)) from None
        if document is None:
            return False
        self._documents += 1
        if self._documents > MAX_DOCUMENTS:
            raise NotAllowedHere(0, f"more than {MAX_DOCUMENTS} here-documents in a script with expressions")
        if MARK in document.delimiter:
            raise NotAllowedHere(len(self._slots), "an expression cannot be the delimiter of a here-document")
        self._at = document.end
        frame.pending = (*frame.pending, document)
        return True

    def _bodies(self, frame: _Frame) -> None:
        """Consume the bodies of the here-documents that the line just ended has opened."""
        nested = any(outer.kind == "sub" for outer in self._stack)
        for document in frame.pending:
            end, after = body_end(self._text, self._at, document, nested=nested)
            body = self._text[self._at : end]
            if document.quoted and MARK in body:
                self._unquote(document, body)
            elif not document.quoted:
                inner = _Lexer(self._text, self._at, end, "heredoc")
                inner._slots, inner.edits, inner.evaluated = self._slots, self.edits, self.evaluated
                before = len(self._slots)
                inner.slots()
                if self._around.is_shell_input(document.start):
                    self.evaluated.update(range(before, len(self._slots)))
            self._at = after
        frame.pending = ()

    def _unquote(self, document: Document, body: str) -> None:
        """Rewrite a here-document that expands nothing as one in which only the expressions are expanded."""
        if not document.is_plain:
            raise NotAllowedHere(len(self._slots), "expressions need here-documents with a plain delimiter")
        self.edits.append((document.start, document.end, document.delimiter))
        here = self._at
        for piece in body.split(MARK):
            if (new := escaped(piece)) != piece:
                self.edits.append((here, here + len(piece), new))
            here += len(piece) + 1
        if self._around.is_shell_input(document.start):
            self.evaluated.update(range(len(self._slots), len(self._slots) + body.count(MARK)))
        self._slots += ["double"] * body.count(MARK)

    def _placeholder(self, place: Place) -> None:
        if self._text[self._at - 1 : self._at] == "\\" and place in ("bare", "double") and not self._is_escaped():
            raise NotAllowedHere(len(self._slots), "an expression cannot follow a backslash")
        if any(frame.kind == "param" and self._at - frame.start > MAX_IN_BRACES for frame in self._stack):
            raise NotAllowedHere(len(self._slots), f"more than {MAX_IN_BRACES} characters in one ${{…}}")
        quoted_from = self._quoted_from()
        in_document = self._stack[0].kind == "heredoc" and all(frame.kind != "sub" for frame in self._stack)
        if self._calculates(quoted_from, in_document=in_document):
            place = "arithmetic"
        elif place != "arithmetic" and not in_document and self._around.is_name(self._at, quoted_from):
            raise NotAllowedHere(len(self._slots), "an expression cannot be the name of a shell variable")
        elif not in_document and self._around.is_evaluated(self._at, quoted_from):
            self.evaluated.add(len(self._slots))
        self._slots.append(place)
        self._at += 1

    def _is_escaped(self) -> bool:
        """Return whether the backslash before this place is itself escaped."""
        before = self._text[max(self._at - 100, 0) : self._at]
        return (len(before) - len(before.rstrip("\\"))) % 2 == 0

    def _quoted_from(self) -> int:
        """Return the position of the quotes around this place; this position, if there are none."""
        start = self._at
        for frame in reversed(self._stack):
            if frame.kind in ("script", "sub", "group"):
                break
            start = frame.start - 1 if frame.kind in ("double", "single", "ansi") else frame.start
        return start

    def _escape(self) -> None:
        self._at += 1 if self._text[self._at + 1 : self._at + 2] == MARK else 2

    def _push(self, kind: str, width: int) -> None:
        self._at += width
        self._stack.append(_Frame(kind, self._at))
        if len(self._stack) > MAX_NESTED:
            raise NotAllowedHere(
                max(len(self._slots) - 1, 0), f"expressions in shell text nested deeper than {MAX_NESTED} levels"
            )

    def _pop(self) -> None:
        if len(self._stack) > 1:
            self._stack.pop()
        self._word_start = self._command_start = False


_OPENING = re.compile(r"<<(-?)[ \t]*")
_ENDS_WORD = " \t\n;&|()<>"
_PLAIN = re.compile(r"[A-Za-z0-9_.,:@%+=-]+")
_SPECIAL = re.compile(r"([\\$`])")


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Here-document whose body is still to come. `start` and `end` delimit its delimiter in the script."""

    delimiter: str
    quoted: bool
    strips_tabs: bool
    start: int
    end: int

    @property
    def is_plain(self) -> bool:
        """Whether the delimiter means the same without quotes."""
        return _PLAIN.fullmatch(self.delimiter) is not None


def opening(text: str, at: int) -> Document | None:
    """Parse the here-document that is opened here, or return None; raise ValueError for an unusual delimiter."""
    match = _OPENING.match(text, at)
    if match is None:
        return None
    here, delimiter, quoted = match.end(), "", False
    while here < len(text) and text[here] not in _ENDS_WORD:
        char = text[here]
        if char in "'\"":
            quoted = True
            end = text.find(char, here + 1)
            end = len(text) if end < 0 else end
            delimiter += text[here + 1 : end]
            here = end + 1
        elif char == "\\":
            quoted = True
            delimiter += text[here + 1 : here + 2]
            here += 2
        else:
            delimiter += char
            here += 1
    word = text[match.end() : here]
    if not delimiter or "$" in word or "`" in word or "\\\n" in word or ("\\" in word and ('"' in word or "'" in word)):
        raise ValueError("expressions need here-documents with a plain delimiter")
    return Document(delimiter=delimiter, quoted=quoted, strips_tabs=bool(match[1]), start=match.end(), end=here)


def body_end(text: str, at: int, document: Document, *, nested: bool) -> tuple[int, int]:
    """Return the end of the body that begins at `at`, and the position after its delimiter."""
    continued = False
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at:end]
        shown = line.lstrip("\t") if document.strips_tabs else line
        if not continued and shown == document.delimiter:
            return at, min(end + 1, len(text))
        if nested and not continued and shown.startswith(document.delimiter + ")"):
            return at, end - len(shown) + len(document.delimiter)  # bash takes `EOF)` for the end inside $(…)
        continued = not document.quoted and (len(line) - len(line.rstrip("\\"))) % 2 == 1
        at = end + 1
    return len(text), len(text)


def escaped(body: str) -> str:
    """Return the body of a quoted here-document as an unquoted one has to write it."""
    return _SPECIAL.sub(r"\\\1", body)
