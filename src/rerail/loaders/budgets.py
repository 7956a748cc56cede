"""`budget:` and `rate_limit:` in a pipeline file."""

from __future__ import annotations

import re
from typing import Any

from rerail.core.model import Budget, RateLimit
from rerail.loaders.document import Node
from rerail.loaders.fields import Fields, Problems, describe

BUDGET_KEYS = ("cost_usd", "tokens", "time", "on_exceed")
RATE_LIMIT_KEYS = ("on", "pause_after")
MAX_CONDITIONS = 100
MAX_PATTERN = 1_000  # characters


def read_budget(owner: Fields, key: str = "budget", *, may_stop: bool = True) -> Budget | None:
    """Read a budget; None if there is none. Without `may_stop`, `on_exceed: stop` is a problem."""
    node = owner.get(key)
    if node is None:
        return None
    fields = Fields(node, owner.problems, f"`{key}`")
    fields.only(BUDGET_KEYS)
    if isinstance(node.value, dict) and not any(fields.has(amount) for amount in BUDGET_KEYS[:3]):
        owner.problems.add(node, f"`{key}` is empty: it needs one of {', '.join(BUDGET_KEYS[:3])}")
    time = fields.duration("time")
    if time == 0:
        owner.problems.add(fields.get("time") or node, f"`time` of `{key}` must be above 0")
    on_exceed: Any = fields.choice("on_exceed", ("finish", "stop"), "finish")
    if on_exceed == "stop" and not may_stop:
        where = fields.get("on_exceed") or node
        owner.problems.add(where, f"`on_exceed: stop` of `{key}`: an item in flight cannot be stopped, it finishes")
    return Budget(
        cost_usd=fields.amount("cost_usd"),
        tokens=fields.count("tokens", 1) if fields.has("tokens") else None,
        time=time,
        on_exceed=on_exceed,
    )


def read_rate_limit(owner: Fields) -> RateLimit:
    """Read the further signs of a refusal by a service, and the longest wait; `false`: no refusal is recognised."""
    node = owner.get("rate_limit")
    if node is None:
        return RateLimit()
    if node.value is False:
        return RateLimit(recognised=False)
    fields = Fields(node, owner.problems, "`rate_limit`")
    fields.only(RATE_LIMIT_KEYS)
    pause_after = fields.duration("pause_after")
    return RateLimit(
        on=read_conditions(fields.get("on"), "rate_limit", "exit codes and patterns on stderr", owner.problems),
        pause_after=RateLimit().pause_after if pause_after is None else pause_after,
    )


def read_conditions(node: Node | None, owner: str, what: str, problems: Problems) -> tuple[str | int, ...]:
    """Read a list of exit codes and patterns."""
    if node is None:
        return ()
    conditions: list[str | int] = []
    if isinstance(node.value, list) and len(node.value) > MAX_CONDITIONS:
        problems.add(node, f"{len(node.value)} conditions in `on` of `{owner}`; {MAX_CONDITIONS} at most")
        return ()
    for child in node.value if isinstance(node.value, list) else [node]:
        value = child.value
        if isinstance(value, bool) or not isinstance(value, str | int):
            problems.add(child, f"`on` of `{owner}` lists {what}, not {describe(child)}")
            continue
        if isinstance(value, str) and not _is_pattern(value, child, owner, problems):
            continue
        conditions.append(value)
    return tuple(conditions)


def _is_pattern(value: str, node: Node, owner: str, problems: Problems) -> bool:
    if len(value) > MAX_PATTERN:
        problems.add(node, f"`on` of `{owner}`: a pattern of {len(value)} characters; {MAX_PATTERN} at most")
        return False
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        problems.add(node, f"`on` of `{owner}`: {value[:60]!r} is no pattern: {error}")
        return False
    return True
