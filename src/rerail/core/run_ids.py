"""Generated run ids, such as `k7f3-content`: a code to type, and the name of the pipeline to recognise. Pure.

The code alone names the run: no other id begins with it. The time is in `created_at`, not in the id.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable

LETTERS = "bcdfghjkmnpqrstvwxyz"  # no vowels, so that no word comes up, and no l
DIGITS = "23456789"  # neither 0 nor 1
CODE_LENGTH = 4
NAME_LENGTH = 20
_TRIES = 50  # before a code of one more character: in a store with hundreds of thousands of runs


def generate(pipeline: str, taken: Collection[str], choose: Callable[[str], str]) -> str:
    """Return a new run id for a pipeline; `choose` returns a random character of a text."""
    name = slug(pipeline)
    length, tries = CODE_LENGTH, 0
    while True:
        code = choose(LETTERS) + "".join(choose(LETTERS + DIGITS) for _ in range(length - 1))
        if not code.isalpha():
            tries += 1
            run_id = f"{code}-{name}"
            if not collides(run_id, taken):
                return run_id
            length += tries % _TRIES == 0


def collides(run_id: str, others: Iterable[str]) -> bool:
    """Return whether a generated id or its code could be mistaken for another id or its code, also where case is ignored.

    That is an id that begins with the code, one that the generated id begins with, and a shorter generated code.
    """
    code = run_id.partition("-")[0]
    for other in others:
        folded = other.lower()
        if folded.startswith(code) or run_id.startswith(folded):
            return True
        head, dash, _ = folded.partition("-")
        if dash and len(head) >= CODE_LENGTH and code.startswith(head):
            return True
    return False


def slug(name: str) -> str:
    """Return a name as it may stand in an id and a file name: lower-case letters and digits, joined by dashes."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:NAME_LENGTH].rstrip("-") or "run"
