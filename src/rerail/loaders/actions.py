"""Actions of steps in a pipeline file, with their outputs and retries."""

from __future__ import annotations

import re
from typing import Any

from rerail.core.model import Action, Approve, Capture, Loop, Map, Python, Retry, Run, Source, Subpipeline, Write
from rerail.loaders.budgets import read_conditions
from rerail.loaders.composites import CONTROLLERS, check_options
from rerail.loaders.fields import Fields, Problems, describe
from rerail.loaders.synonyms import meant

OPTIONS = tuple(
    "id name needs when env cwd timeout retry inputs artifacts outputs checks idempotent allow_failure on_failure"
    " commit_required rate_limit budget".split()
)
PLAIN = ("run", "python", "write")
KINDS = (*PLAIN, "approve", *CONTROLLERS)
APPROVE_OPTIONS = tuple("id name needs when allow_failure on_failure".split())
WRITE_KEYS = ("path", "content", "mode")
MODE = "0?[0-7]{3}"
STREAMS = ("stdout",)
FORMS = ("text", "json", "lines")
MAX_CHECKS = 100

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_OUTPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def read_directory(fields: Fields, problems: Problems) -> str:
    path = fields.text("cwd")
    if "\0" in path:
        problems.add(fields.get("cwd") or fields.node, f"`cwd` of {fields.what} holds a NUL character")
    return path


def read_action(fields: Fields, problems: Problems) -> Action:
    given = [kind for kind in KINDS if fields.has(kind)]
    if len(given) != 1:
        # A key that another tool has for one of them is reported by itself.
        if isinstance(fields.node.value, dict) and (given or problems.many or not _misspelled(fields)):
            what = "has none" if not given else f"has {' and '.join(f'`{kind}`' for kind in given)}"
            problems.add(fields.node, f"{fields.what} needs exactly one of {', '.join(KINDS)}; it {what}")
        return Run(script="")
    for key, kinds in (("with", ("python", "pipeline")), ("steps", ("map", "loop"))):
        if given[0] not in kinds and fields.has(key):
            problems.add(fields.node, f"`{key}` of {fields.what} is only for `{kinds[0]}` and `{kinds[1]}`")
    if given[0] in CONTROLLERS:
        return _controller(fields, given[0], problems)
    return _plain(fields, given[0], problems)


def _misspelled(fields: Fields) -> bool:
    known = (*OPTIONS, *KINDS, "with", "steps")
    return any(meant(key, known) in KINDS for key in list(fields.node.value)[:20] if key not in known)


def _plain(fields: Fields, kind: str, problems: Problems) -> Action:
    match kind:
        case "run":
            return Run(script=_text(fields, "run", problems))
        case "python":
            target = _text(fields, "python", problems)
            if target and not _TARGET.fullmatch(target):
                problems.add(fields.get("python") or fields.node, f"`python` must be module:function, not {target!r}")
            arguments = fields.get("with")
            if arguments is not None and not isinstance(arguments.value, dict):
                problems.add(arguments, f"`with` of {fields.what} must be a mapping, not {arguments.kind}")
                arguments = None
            return Python(target=target, arguments=arguments.plain() if arguments else {})
        case "approve":
            return _approve(fields, problems)
        case _:
            write = Fields(fields.get("write") or fields.node, problems, f"`write` of {fields.what}")
            write.only(WRITE_KEYS)
            return Write(path=_text(write, "path", problems), content=write.text("content"), mode=_mode(write, problems))


def _mode(write: Fields, problems: Problems) -> str:
    """Return the permissions of a file as octal digits; a number is rejected, because YAML reads it as a decimal one."""
    node = write.get("mode")
    if node is None:
        return ""
    if not isinstance(node.value, str) or not re.fullmatch(MODE, node.value):
        quoted = re.fullmatch(MODE, node.written)
        hint = f': write "0{int(node.written)}", in quotes' if quoted else ""
        wanted = 'octal permissions in quotes, such as "0755" or "0644"'
        problems.add(node, f"`mode` of {write.what} must be {wanted}, not {describe(node)}{hint}")
        return ""
    return node.value.zfill(4)


def _approve(fields: Fields, problems: Problems) -> Approve:
    for key in OPTIONS:
        node = fields.get(key)
        if node is not None and key not in APPROVE_OPTIONS:
            problems.add(node, f"`{key}` of {fields.what} makes no sense: an `approve` step runs nothing")
    node = fields.get("approve")
    if node is not None and isinstance(node.value, dict):
        inner = Fields(node, problems, f"`approve` of {fields.what}")
        inner.only(("message",))
        return Approve(message=_text(inner, "message", problems))
    return Approve(message=_text(fields, "approve", problems))


def _controller(fields: Fields, kind: str, problems: Problems) -> Action:
    """Read a map, loop or pipeline without its steps: they are read once the steps before it are known."""
    check_options(fields, kind, OPTIONS)
    match kind:
        case "map":
            return Map(over=Source(kind="list", value=[]), steps=())
        case "loop":
            return Loop(steps=(), max_iterations=1)
        case _:
            return Subpipeline(path=_text(fields, "pipeline", problems), steps=())


def _text(fields: Fields, key: str, problems: Problems) -> str:
    value = fields.text(key)
    node = fields.get(key)
    if not value.strip() and (node is None or isinstance(node.value, str)):  # any other type was rejected already
        problems.add(node or fields.node, f"`{key}` of {fields.what} is empty")
    if "\0" in value:
        problems.add(node or fields.node, f"`{key}` of {fields.what} holds a NUL character")
    return value


def read_outputs(fields: Fields, problems: Problems) -> dict[str, Capture]:
    node = fields.get("outputs")
    if node is None:
        return {}
    if not isinstance(node.value, dict):
        problems.add(node, f"`outputs` of {fields.what} must be a mapping, not {node.kind}")
        return {}
    captures = {}
    for name, child in node.value.items():
        if not _OUTPUT_NAME.fullmatch(name):
            problems.add(child, f"{name[:60]!r} cannot be the name of an output")
        if isinstance(child.value, str):  # short for `from`
            if child.value not in STREAMS:
                problems.add(child, _no_source(name, child.value))
            captures[name] = Capture()
            continue
        inner = Fields(child, problems, f"output `{name}`")
        inner.only(("from", "as"))
        inner.choice("from", STREAMS, "stdout")
        form: Any = inner.choice("as", FORMS, "text")
        captures[name] = Capture(form=form)
    return captures


def _no_source(name: str, given: str) -> str:
    """Return the problem with an output that is not taken from a stream."""
    if given in FORMS:
        return f"output `{name}` must be stdout, not {given!r}; for JSON or lines write {{from: stdout, as: {given}}}"
    return (
        f"output `{name}` must be stdout, or a mapping such as {{from: stdout, as: json}}, not {given[:40]!r};"
        f' a step sets other values with echo "{name[:40]}=…" >> "$RERAIL_OUTPUT"'
    )


def read_retry(owner: Fields, problems: Problems) -> Retry:
    node = owner.get("retry")
    if node is None:
        return Retry()
    if not isinstance(node.value, dict):
        if not isinstance(node.value, int):
            problems.add(node, f"`retry` must be a number of attempts or a mapping, not {describe(node)}")
            return Retry()
        return Retry(attempts=owner.count("retry", 1))
    fields = Fields(node, problems, "`retry`")
    fields.only(("attempts", "backoff", "delay", "max_delay", "jitter", "on"))
    base = Retry()
    delay, max_delay = fields.duration("delay"), fields.duration("max_delay")
    backoff: Any = fields.choice("backoff", ("fixed", "linear", "exponential"), base.backoff)
    return Retry(
        attempts=fields.count("attempts", base.attempts),
        backoff=backoff,
        delay=base.delay if delay is None else delay,
        max_delay=base.max_delay if max_delay is None else max_delay,
        jitter=fields.flag("jitter", default=base.jitter),
        on=read_conditions(fields.get("on"), "retry", "rate_limit, timeout, exit codes and patterns on stderr", problems),
    )
