"""Evaluation in scripts: where a script evaluates the content of its variables, and which values are unsafe there.

Shells run commands in the content of a variable where they calculate and where they take names (`(( n ))`
with `a[$(cmd)]` in `n`), and where they expand a text twice (`PS4`, `${x@P}`). A value is judged by
its characters alone: how far a shell would get in parsing it is its own affair, and changes from release to
release. The script is only searched for such an evaluation anywhere. Doubtful cases count as one: a
command is inert only if it is written so simply that no value can be among the names it takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

# Commands that a shell could run, were it to expand a value. `${` is among them: bash 5.3 runs `${ cmd; }`.
_COMMAND = re.compile(r"\$[({]|`|[<>]\(")
_NAME_END = r"[\w\x80-\U0010ffff]"  # the last character of a name, in any locale
_SUBSCRIPT = re.compile(_NAME_END + r"\[")
_LOOSE_SUBSCRIPT = re.compile(r"(?:^|\s)\[")
_REFERENCE = re.compile(r"\$[\w@*#!?-]")
_LIST = re.compile(r"(?:^|=)\s*\(")
_SUSPICIOUS = re.compile(r"[$`\\]|[<>]\(")

# Words that a shell gives variables or expressions to, and how they are written when they are harmless. Inside a word
# that is not harmless by its looks nothing is taken apart.
_DECLARING = r"declare|typeset|local|export|readonly"
_LITERAL = r"""(?:[^\s"'\\`$;&|<>(){}]|'[^']{0,2000}'|"[^"\\`$]{0,2000}")"""
_ARGUMENT = r"""[^()"'`\\\n]|'[^'\n]*'|"(?:[^"\\`$()\n]|\$\w+|\$\{\w+\})*\""""
_SIMPLE = rf"\$(?:[\w#?!$]|\{{\w+(?::?-[\w./]*)?\}}|\((?!\()(?:{_ARGUMENT})*+\))"
_QUOTED = rf"""'[^']{{0,2000}}'|"(?:[^"\\`$]|{_SIMPLE}){{0,2000}}\""""
_WORD = rf"""(?:[^\s"'\\`$;&|<>(){{}}]|{_QUOTED}|\$[#?!$])"""
_ASSIGNED = rf"""[A-Za-z_]\w*\+?=(?:[^\s"'\\`$;&|<>(){{}}]|{_QUOTED}|{_SIMPLE})*+"""
_REDIRECTION = rf"[ \t]*\d*(?:<<<|<<-?|>>|>&|<&|&>|>|<)[ \t]*(?:<\([^()\n]*\)|(?:{_WORD}|\$\w)+)"
_END = rf"(?:{_REDIRECTION})*+[ \t]*(?=$|[\n;|)#]|&(?!>))"

_NAMING = re.compile(
    rf"(?<![\w$./-])(?:{_DECLARING}|read|unset|mapfile|readarray|getopts|wait|trap|let|eval|source|printf|test)(?![\w./=-])"
    r"|(?:(?<=[\s;&|(!`{])|^)\[(?=\s)|(?:(?<=[\n;&|({])|^|(?<=then)|(?<=do))[ \t]*\.(?=[ \t]+\S)",
    re.MULTILINE,
)
_INERT = {
    "declare": re.compile(rf"(?:[ \t]+(?:{_ASSIGNED}|-[A-Zac-fgj-mo-z]+|[A-Za-z_]\w*))*+{_END}"),  # neither -i nor -n
    "read": re.compile(rf"(?:[ \t]+{_LITERAL}+)*+{_END}"),
    "wait": re.compile(rf"(?:[ \t]+(?:{_LITERAL}+|\$!|\"\$!\"))*+{_END}"),
    "printf": re.compile(
        r"""[ \t]+(?:-v[ \t]*[A-Za-z_]\w*[ \t]+)?(?:--[ \t]+)?(?:["'](?=[^"'])|(?=[^"']))(?:[^\s$`"'\\-]|\\[a-z0-9])"""
    ),
    "test": re.compile(rf"(?:[ \t]+(?!\"\$\S*[ \t]+\"\$|[-\"']*[vR][\"']*\s){_WORD}+)*+{_END}"),
}
_SAME = dict.fromkeys(_DECLARING.split("|"), "declare") | {"[": "test"}
_SAME |= dict.fromkeys(("unset", "mapfile", "readarray", "getopts", "trap"), "read")
_BEFORE_COMMANDS = frozenset("if then else elif while until do time command builtin coproc in exec eval env".split())
_PROSE = re.compile(r"(?:^|[^<>\s][ \t]+)[\"'(]?([A-Za-z]+)[,.:]?[ \t]+\Z")
_BEGINS_COMMAND = re.compile(r"(?:^|[\n;&|({`]|\b(?:then|do|else|if|while|until))[ \t]*(?:\w+=\S*[ \t]+)*\Z")
_INDIRECT = re.compile(r"\b(?:command|builtin)(?:[ \t]+-\w+)*[ \t]+\Z")
_RUNS_TEXT = re.compile(
    r"\$\{?[@*]|(?:^|[;&|({!]|\b(?:then|do|else|if|while|until|command|builtin))[ \t]*[\"']?\$[\w{]", re.MULTILINE
)

_CALCULATING = re.compile(
    r"\(\((?![^()A-Za-z_$`]*\)\))"
    r"|\$\[(?![^\]A-Za-z_$`]*\])"
    r"|\$\{!(?!\w+(?:\[[@*]\]|[@*])\})"
    r"|\$\{[#!]?[\w@*?-]+(?:\[[^\]\n]*\])?:(?![-=?+])(?![\d\s:-]*\})"
    r"|(?<![\w$])(?<!\$\{)(?:S?RANDOM|OPTIND|SECONDS|LINENO|HISTCMD|BASHPID|BASH_SUBSHELL|EPOCH\w+|BASH_MONOSECONDS)\b"
)
_COMPARING = re.compile(r"\s-(?:eq|ne|lt|le|gt|ge|v|R)\s")
_ASSIGNING_ELEMENTS = re.compile(r"[\s(]\[[^\]\n]*[A-Za-z_$`][^\n]*?\]\+?=")
_EXPANDING_ELEMENTS = re.compile(r"[\s(]\[[^\]\n]*[$`][^\n]*?\]\+?=")  # x=([$k]=1) expands the value of `k`
_OWN_SUBSCRIPT = re.compile(r"(\$\{#?\w+|(?<![\w.])\w+[\"']?|\}[\"']?)\[(?!\[?:)")  # behind a dot it is no variable
_QUOTED_SUBSCRIPT = re.compile(r"""(["'])[^"'\\`$]*\1(?=\])""")
_EXPANDING = re.compile(r"@P\}|\bPS4\b|\b(?:compgen|BASH_ENV|PROMPT_COMMAND)\b|\bcomplete[ \t]+-")
_TRACING = re.compile(r"\bxtrace\b|\b(?:set|\w*sh)[ \t][^\n]*-\w*x")
_MAKES_LISTS = re.compile(
    rf"\b(?:{_DECLARING})\b[^\n]*?\s[-+]\w*[aA]|=\(|\b(?:mapfile|readarray)\b|\bread\b[^\n]*\s-\w*a|\w\[[^\n]*\]="
)
_DECLARES = re.compile(rf"\b(?:{_DECLARING})\b")
_WRITES_LIST = re.compile(rf"\b(?:{_DECLARING})\b[^\n]*[\"'][^\n]*=\([^\n]*[$`]")
_GLUED = re.compile(r"[\w}][\"']*\$")
_HIDDEN = re.compile(r"[\"'\\]")
_NAMES = re.compile(r"[A-Za-z_$`]")
_TEXTS = re.compile(r"[$`%]")
_NESTED_TEXTS = re.compile(r"\w\[[^\n]*[$`]")
_MAX_SUBSCRIPT = 400
_MAX_SHOWN = 40


class Evaluation(msgspec.Struct, frozen=True):
    """Ways in which a script evaluates the content of variables; each is the piece of it that shows so, or ''."""

    calculates: str = ""  # or takes names: `a[$(cmd)]` would run
    subscribes: str = ""  # it puts text into a subscript, and calculates: `$(cmd)` would run
    lists: str = ""  # it declares variables and has lists: `($(cmd))` would run
    expands: str = ""  # twice: `$(cmd)` would run
    glues: bool = False  # it writes a value directly behind a name


class Danger(msgspec.Struct, frozen=True):
    """Value that could run: its index, and the reason."""

    index: int
    why: str


@lru_cache(maxsize=16)
def evaluation(script: str) -> Evaluation:
    """Return how a script evaluates the content of variables."""
    text = script.replace("\\\n", "")
    takes = next(_live_commands(text), "")
    twice = takes or _calculation(text) or _hidden_command(text)
    declares = _found(_DECLARES, text)
    expands = _found(_EXPANDING, text) or _found(_WRITES_LIST, text) or _found(_EXPANDING_ELEMENTS, text)
    if not expands and (takes or declares) and _TRACING.search(text):
        expands = takes or declares  # the variable could be PS4
    return Evaluation(
        calculates=twice or _found(_ASSIGNING_ELEMENTS, text) or next(_subscripts(text, _NAMES), ""),
        subscribes=next(_subscripts(text, _TEXTS if twice else _NESTED_TEXTS, in_braces=False), ""),
        lists=declares if declares and _MAKES_LISTS.search(text) else "",
        expands=expands,
        glues=_GLUED.search(text) is not None,
    )


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return _shown(text, match.start()) if match else ""


def _shown(text: str, at: int) -> str:
    return text[at : at + _MAX_SHOWN].strip().split("\n")[0].rstrip()


def _calculation(text: str) -> str:
    if found := _found(_CALCULATING, text):
        return found
    return _found(_COMPARING, text) if "[[" in text else ""


def _subscripts(text: str, wanted: re.Pattern[str], *, in_braces: bool = True) -> Iterator[str]:
    """Yield the subscripts in the script itself that match `wanted`."""
    for match in _OWN_SUBSCRIPT.finditer(text):
        if not in_braces and match[1].startswith("$"):
            continue  # ${a[$k]} is calculated once: the value of `k` is not expanded again
        if wanted.search(_bracketed(text, match.end())):
            yield _shown(text, match.start())


def _bracketed(text: str, at: int) -> str:
    """Return the text between brackets; with quotes in it, the rest of the line: they may hide a bracket."""
    if quoted := _QUOTED_SUBSCRIPT.match(text, at):
        return quoted[0]
    depth, window = 1, text[at : at + _MAX_SUBSCRIPT]
    for offset, char in enumerate(window):
        if char in "\"'\\":
            return window.split("\n")[0]
        depth += (char == "[") - (char == "]")
        if not depth:
            return window[:offset]
    return window.split("\n")[0]


def _live_commands(text: str) -> Iterator[str]:
    """Yield the commands that take names or expressions, unless no value can be among these as they are written."""
    runs_text = _RUNS_TEXT.search(text) is not None  # then a word may be a command wherever it stands
    for match in _NAMING.finditer(text):
        word = match[0].strip()
        before = text[max(match.start() - 80, 0) : match.start()]
        if word != "[" and not runs_text and _is_prose(before):
            continue
        kind = _SAME.get(word, word)
        inert = _INERT.get(kind)
        # Only where it is a plain word are the arguments of `export` assignments, and not split.
        splits = kind == "declare" and (before[-1:] in ("\\", '"', "'") or _INDIRECT.search(before))
        named = runs_text and not _BEGINS_COMMAND.search(before)
        if inert is None or splits or named or not inert.match(text, match.end()):
            yield _shown(text, match.start())


def _is_prose(before: str) -> bool:
    """Return whether a word follows another plain word, as in `npm test` and in text: then it is not a command."""
    match = _PROSE.search(before.rsplit("\n", 1)[-1])
    return match is not None and match[1] not in _BEFORE_COMMANDS


def _hidden_command(text: str) -> str:
    """Return a command that shows only without quotes and backslashes (`l''et`), or ''."""
    plain = _HIDDEN.sub("", text)
    shown = [match[0].strip() for match in _NAMING.finditer(text)]
    for match in _NAMING.finditer(plain):
        if match[0].strip() not in shown:
            return match[0].strip()
    return ""


def is_expanded(name: str, value: str) -> bool:
    """Return whether bash expands this environment variable by itself, and would find a command to run in it."""
    return name in ("BASH_ENV", "ENV", "PS4", "PROMPT_COMMAND") and ("\\" in value or _COMMAND.search(value) is not None)


def danger(script: str, values: Sequence[str]) -> Danger | None:
    """Return the first of a script's values in which a shell could find something to run; None if there is none."""
    if not any(_SUSPICIOUS.search(value) for value in values):
        return None
    done = evaluation(script)
    commands = [_COMMAND.search(value) is not None for value in values]
    together = any(commands) or _joined(values)
    for index, value in enumerate(values):
        if done.expands and (commands[index] or "\\" in value):
            return Danger(index, _why("a command", "expands text a second time", done.expands))
        if done.subscribes and (commands[index] or (together and value.endswith("$"))):
            return Danger(index, _why("a command", "calculates or takes names with a subscript", done.subscribes))
        if done.lists and commands[index] and _ends_in(value, _LIST.search(value), _COMMAND):
            return Danger(index, _why("a list with a command in it", "declares variables that may be lists", done.lists))
        if done.calculates and _is_live(value, values, done, together=together):
            return Danger(index, _why("a subscript with a command in it", "calculates or takes names", done.calculates))
    return None


def _is_live(value: str, values: Sequence[str], done: Evaluation, *, together: bool) -> bool:
    """Return whether this value, alone or with the others, can form a name with a command in its subscript."""
    begins = _SUBSCRIPT.search(value)
    if done.glues and (begins is None or not _COMMAND.search(value, begins.end())):
        begins = _LOOSE_SUBSCRIPT.search(value) or begins
    if begins is None:
        return False
    if _COMMAND.search(value, begins.end()):
        return True
    if together and _REFERENCE.search(value, begins.end()):
        return True  # a[b[$x]], where x is the name of a variable with a command
    rest = value[max(value.rfind("["), begins.end() - 1) :]
    is_open = "]" not in rest or _HIDDEN.search(rest) is not None
    return len(values) > 1 and is_open and (together or any(_SUSPICIOUS.search(other) for other in values))


def _ends_in(value: str, begins: re.Match[str] | None, wanted: re.Pattern[str]) -> bool:
    return begins is not None and wanted.search(value, begins.end()) is not None


def _joined(values: Sequence[str]) -> bool:
    """Return whether two values, one after the other, form a command."""
    return any(value.endswith("$") for value in values) and any(value[:1] in ("(", "{") for value in values)


def _why(holds: str, does: str, where: str) -> str:
    return (
        f"the value holds {holds}, which a shell would run: this script {does} (`{where}`)."
        " Declare a number as one (`type: integer`); let a `write` step put text into a file that the script reads"
    )
