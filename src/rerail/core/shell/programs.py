"""Files that a script starts as programs: `./build.sh`, `../tools/run`. Read without a shell, so only the plain cases."""

from __future__ import annotations

import re
from collections.abc import Iterator

_COMMAND = re.compile(
    r"(?:^|&&|\|\||[;|(!{]|\b(?:then|do|else|exec|time)\s)[ \t]*((?:[\w]+=\S* +)*)(\.{1,2}/[\w./+@%-]+)(?=[\s;&|)]|$)"
)
_MOVES = re.compile(r"(?:^|[;&|(])\s*(?:cd|pushd)\s")
MAX_LINES = 2_000


def started_files(script: str) -> Iterator[str]:
    """Yield the relative paths that a script starts, as written, up to the first line that changes the directory.

    A path is left out if the script names its file before: it may make it, or ask whether it is there.
    """
    seen: set[str] = set()
    before = ""
    for line in script.split("\n", MAX_LINES)[:MAX_LINES]:
        text = line.strip()
        if text.startswith("#"):
            continue
        if "<<" in text or _MOVES.search(text):
            return
        for match in _COMMAND.finditer(text):
            path = match[2]
            name = path.rsplit("/", 1)[-1]
            if name and path not in seen and name not in before and name not in text[: match.start(2)]:
                seen.add(path)
                yield path
        before += text + "\n"
