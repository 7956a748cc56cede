"""Expressions of other tools in a text: `{{ params.x }}`, `${item.x}`, `$params.x`. Here they are plain text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from rerail.core.expressions.syntax import Finding

# Names of other tools, and ours.
_ROOTS = {
    **{name: name for name in ("params", "env", "steps", "item", "loop", "run")},
    **dict.fromkeys(
        "inputs input parameters vars workflow.parameters inputs.parameters workflow.input".split(), "params"
    ),
    **dict.fromkeys("tasks nodes jobs".split(), "steps"),
    **dict.fromkeys("map.item foreach.item".split(), "item"),
}
_BRACES = re.compile(r"(?<![${])\{\{-?\s*(\.?)([A-Za-z_]\w*)((?:\.[\w-]+)*)\s*(?:\|[^{}]*)?-?\}\}(?!\})")
_SHELL = re.compile(r"\$\{([A-Za-z_]\w*)((?:\.[\w-]+)+)[^{}]*\}")
_BARE = re.compile(r"\$(params|item|steps|inputs|parameters)((?:\.[A-Za-z_][\w-]*)+)")
MAX_TEXT = 200_000
MAX_FOUND = 20


def found(text: str, params: Collection[str], *, in_shell: bool) -> Iterator[Finding]:
    """Yield a finding for each text that looks like an expression of another tool."""
    if len(text) > MAX_TEXT or ("{{" not in text and "$" not in text):
        return
    for count, (offset, piece, ours) in enumerate(_candidates(text, params, in_shell=in_shell)):
        if count == MAX_FOUND:
            return
        what = "the shell reads it" if in_shell and piece.startswith("$") else "it stays as it is"
        message = f"`{piece[:60]}` is no expression of rerail: {what}"
        yield Finding(message, f"write `${{{{ {ours} }}}}`", offset, piece, "foreign-expression")


def _candidates(text: str, params: Collection[str], *, in_shell: bool) -> Iterator[tuple[int, str, str]]:
    """Yield (offset, as written, as it would be here)."""
    for match in _BRACES.finditer(text):
        dot, root, rest = match.groups()
        ours = _ours(root, rest, params, alone=True)
        if ours and (not dot or (root in params and not rest)):  # `{{.State}}` is for docker
            yield match.start(), match[0], ours
    for match in _SHELL.finditer(text):
        ours = _ours(match[1], match[2], params, alone=False)
        if ours:
            yield match.start(), match[0], ours
    for match in _BARE.finditer(text) if in_shell else ():
        ours = _ours(match[1], match[2], params, alone=False)
        own = re.search(rf"\b{match[1]}=|\b(?:for|read|local|declare|export)\s[^\n]*\b{match[1]}\b", text)
        if ours and not own:  # a variable of the script's own
            yield match.start(), match[0], ours


def _ours(root: str, rest: str, params: Collection[str], *, alone: bool) -> str:
    """Return the expression that is meant, or ''."""
    names = (root + rest).split(".")
    for length in (2, 1):
        ours = _ROOTS.get(".".join(names[:length]), "") if len(names) >= length else ""
        if ours and (len(names) > length or ours == "item"):
            return ".".join([ours, *names[length:]])
    return f"params.{root}" if alone and not rest and root in params else ""
