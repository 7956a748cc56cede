"""Rate limits: the messages with which services refuse a request for a while. Pure.

It is a table because every service words it its own way; a step can add its own with `rate_limit: {on: [...]}`.
The time until which they refuse is parsed in `retry_after`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from rerail.core.model import Refusal

TRY_LATER: Final = 75  # EX_TEMPFAIL of sysexits.h: "a failure that is temporary; try again later"


class _Row(NamedTuple):
    name: Refusal
    looks_like: re.Pattern[str]


def _row(name: Refusal, *patterns: str) -> _Row:
    return _Row(name, re.compile("|".join(patterns), re.IGNORECASE))


# The first row that matches counts. Nothing here may take long: the text comes from strangers.
REFUSALS: Final = (
    _row(
        "rate limit",  # a limit per minute is called "quota" too, and is over soon
        r"(?:limit|quota|exceed)[^\n]{0,80}\b(?:requests|tokens)[ _-]per[ _-](?:min|sec)",
        r"\b(?:requests|tokens)[ _-]per[ _-](?:min|sec)[^\n]{0,40}(?:limit|quota|exceed)",
        r"per[ _-]?(?:minute|second)[ _-]?(?:limit|quota)",
    ),
    _row(
        "quota",
        r"usage limit (?:has been )?(?:reached|exceeded|hit)",
        r"(?:hit|reached|exceeded) your (?:(?:usage|session|weekly|daily|monthly|current|api) ){0,2}(?:limit|quota)",
        r"(?:hit|reached|exceeded) your \w{1,20} (?:usage|message) limit",
        r"(?:session|weekly|daily|monthly|5-hour) limit (?:reached|exceeded|hit)",
        r"(?<!disk )quota[ _-]?(?:was |has been |is )?(?:exceeded|exhausted|reached)",
        r"exceeded (?:your|the) (?:\w{1,20} )?quota",
        r"insufficient[ _]quota|resource_?exhausted\b|out of (?:credits|quota)|credit balance is too low",
    ),
    _row(
        "overloaded",
        r"overloaded[ _]?error|(?:is|are|model|server|service|currently) overloaded",
        r"(?:http|status|error|code)\W{0,4}(?:code\W{0,3})?529\b|\b529\b\W{0,4}(?:overloaded|site is)",
        r"\bSlowDown\b",
    ),
    _row(
        "rate limit",
        r"rate[ _-]?limits?[ _-]?(?:ed\b|exceed|reached|hit|error|exception)",
        r"(?:exceed|reach|hit)\w{0,6}(?: \w{1,20}){0,3} rate[ _-]?limit|secondary rate limit",
        r"too[ _-]?many[ _-]?requests|\brate exceeded\b|(?:request|throughput)(?:limit)?exceeded",
        r"throttl(?:ed|ing)[ _-]?(?:exception|error)|requests? (?:was |were )?throttled",
        r"(?:http(?:/[\d.]{1,3})?|status|error|code)\W{0,4}(?:code\W{0,3})?429\b|\b429\b\W{0,4}(?:too many|client error)",
        r"(?:returned|rejected|responded|answered|response)\W{0,3}(?:with )?429\b",
    ),
)

MAX_TEXT: Final = 8_000  # characters that are searched, half of them from the end
_SPACE: Final = re.compile(r"[^\S\n]+")
_TALK: Final = re.compile(r"\bassert|\bexpected\b[^\n]{0,60}\b(?:got|but|received)\b", re.IGNORECASE)


def relevant_text(text: str) -> str:
    """Return the relevant text: without assertions about refusals, and short enough to be searched quickly."""
    if len(text) > MAX_TEXT:  # the cause is at its beginning or at its end
        text = f"{text[: MAX_TEXT // 2]}\n{text[-MAX_TEXT // 2 :]}"
    return "\n".join(line for line in _SPACE.sub(" ", text).split("\n") if not _TALK.search(line))


def classify(text: str, kind: str, exit_code: int | None) -> Refusal | None:
    """Return the kind of refusal, by the message, the name of an exception or the exit code; None if it is none."""
    relevant = relevant_text(f"{kind}\n{text}")
    for row in REFUSALS:
        if row.looks_like.search(relevant):
            return row.name
    return "rate limit" if exit_code == TRY_LATER else None
