"""pipeline.yaml → Pipeline: every problem at once, each with file:line:column."""

from __future__ import annotations

import os
import re
import stat
from typing import Any

import msgspec

from rerail.core.graph import Ancestors, find_cycle
from rerail.core.model import (
    Action,
    CheckpointPolicy,
    Param,
    Pipeline,
    Python,
    Retry,
    Run,
    Step,
    Write,
)
from rerail.core.template import Known
from rerail.errors import PipelineInvalid
from rerail.loaders.document import MAX_BYTES, Malformed, Node, parse
from rerail.loaders.expressions import Expressions
from rerail.loaders.fields import Fields, Problems

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_TOP = ("name", "labels", "params", "env", "defaults", "checkpoint", "steps")
_OPTIONS = ("id", "name", "needs", "when", "env", "cwd", "timeout", "retry", "allow_failure", "idempotent")
_KINDS = ("run", "python", "write")
_DEFAULTABLE = ("timeout", "retry", "env")


def read_pipeline_file(path: str) -> bytes:
    """The bytes of a pipeline file; raises PipelineInvalid for anything that is not one."""
    hint = "rerail run PIPELINE"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise PipelineInvalid([f"{path}: cannot be read: {error.strerror}"], hint=hint) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise PipelineInvalid([f"{path}: not a regular file"], hint=hint)
        if status.st_size > MAX_BYTES:
            raise PipelineInvalid([f"{path}: {status.st_size} bytes; {MAX_BYTES} at most"], hint=hint)
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    finally:
        os.close(fd)


def load_pipeline(data: bytes, path: str) -> Pipeline:
    """The pipeline a file declares; raises PipelineInvalid with all that is wrong with it."""
    problems = Problems(path)
    try:
        pipeline = _pipeline(parse(data.decode("utf-8-sig")), problems, path)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        problems.add_at(line, 1, "not UTF-8")
    except Malformed as error:
        problems.add_at(error.line, error.column, error.message)
    if problems:
        raise PipelineInvalid(problems.lines, hint=f"rerail run {path}, once it is corrected")
    return pipeline


def _pipeline(root: Node, problems: Problems, path: str) -> Pipeline:
    top = Fields(root, problems, "the pipeline")
    top.only(_TOP)
    defaults = Fields(top.get("defaults") or _empty(), problems, "`defaults`")
    defaults.only(_DEFAULTABLE)
    params = _params(top, problems)
    steps = _steps(top, defaults, problems, params)
    stem = os.path.basename(path).rsplit(".", 1)[0]
    return Pipeline(
        name=top.text("name", stem) or stem,
        labels=top.texts("labels"),
        env=top.texts("env"),
        params=params,
        checkpoint=_checkpoint(top, problems),
        steps=steps,
    )


def _steps(top: Fields, defaults: Fields, problems: Problems, params: dict[str, Param]) -> tuple[Step, ...]:
    node = top.get("steps")
    if node is None:
        problems.add(top.node, "the pipeline has no `steps`")
        return ()
    if not isinstance(node.value, list) or not node.value:
        problems.add(node, "`steps` must be a list of at least one step")
        return ()
    steps: list[Step] = []
    sources: list[Fields] = []
    needed: list[tuple[str, Node]] = []
    places: dict[str, Node] = {}
    for position, child in enumerate(node.value, 1):
        previous = steps[-1].id if steps else None
        fields = Fields(child, problems, f"step {position}")
        step, needs = _step(fields, defaults, previous, position)
        if step.id in places:
            problems.add(child, f"the id `{step.id}` is taken by the step in line {places[step.id].line}")
        places.setdefault(step.id, child)
        steps.append(step)
        sources.append(fields)
        needed += needs
    if not _check_needs(steps, needed, places, problems) or len(places) < len(steps):
        return tuple(steps)
    shared = (top.get("env"), defaults.get("env"))
    return _with_expressions(steps, sources, shared, set(params))


def _with_expressions(
    steps: list[Step], sources: list[Fields], shared: tuple[Node | None, ...], params: set[str]
) -> tuple[Step, ...]:
    """Check every expression against what can exist where it stands."""
    ancestors = Ancestors({step.id: step.needs for step in steps})
    names = {step.id for step in steps}
    checked = []
    for step, fields in zip(steps, sources, strict=True):
        known = Known(params=params, steps=ancestors.of(step.id), all_steps=names)
        expressions = Expressions(fields.problems, known)
        for node in (*shared, *(fields.get(key) for key in ("env", "cwd", "with", "write"))):
            expressions.everything(node)
        expressions.script(fields, "run")
        when = expressions.bare(fields, "when")
        checked.append(msgspec.structs.replace(step, when=when, dynamic=expressions.found))
    return tuple(checked)


def _step(
    fields: Fields, defaults: Fields, previous: str | None, position: int
) -> tuple[Step, tuple[tuple[str, Node], ...]]:
    fields.only((*_OPTIONS, *_KINDS, "with"))
    problems = fields.problems
    step_id = fields.text("id") or f"step-{position}"
    if not _ID.fullmatch(step_id):
        problems.add(fields.get("id") or fields.node, f"{step_id[:70]!r} cannot be a step id: letters, digits, _ . -")
    fields.what = f"step `{step_id[:70]}`"
    needs = fields.names("needs")
    timeout = fields if fields.has("timeout") else defaults
    retry = fields if fields.has("retry") else defaults
    step = Step(
        id=step_id,
        name=fields.text("name"),
        action=_action(fields, problems),
        needs=tuple(dict.fromkeys(name for name, _ in needs)) if needs is not None else _after(previous),
        env={**defaults.texts("env"), **fields.texts("env")},
        cwd=fields.text("cwd"),
        timeout=timeout.duration("timeout"),
        retry=_retry(retry, problems),
        allow_failure=fields.flag("allow_failure", default=False),
        idempotent=fields.flag("idempotent", default=True),
        line=fields.node.line,
    )
    return step, needs or ()


def _after(previous: str | None) -> tuple[str, ...]:
    return () if previous is None else (previous,)


def _action(fields: Fields, problems: Problems) -> Action:
    given = [kind for kind in _KINDS if fields.has(kind)]
    nothing = Run(script="")
    if len(given) != 1:
        if isinstance(fields.node.value, dict):
            what = "has none" if not given else f"has {' and '.join(f'`{kind}`' for kind in given)}"
            problems.add(fields.node, f"{fields.what} needs exactly one of {', '.join(_KINDS)}; it {what}")
        return nothing
    if given != ["python"] and fields.has("with"):
        problems.add(fields.node, f"`with` of {fields.what} goes with `python` only")
    match given[0]:
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
        case _:
            write = Fields(fields.get("write") or _empty(), problems, f"`write` of {fields.what}")
            write.only(("path", "content"))
            return Write(path=_text(write, "path", problems), content=write.text("content"))


def _text(fields: Fields, key: str, problems: Problems) -> str:
    value = fields.text(key)
    node = fields.get(key)
    if not value.strip() and (node is None or not isinstance(node.value, list | dict)):
        problems.add(node or fields.node, f"`{key}` of {fields.what} is empty")
    if "\0" in value:
        problems.add(node or fields.node, f"`{key}` of {fields.what} holds a NUL character")
    return value


def _retry(owner: Fields, problems: Problems) -> Retry:
    node = owner.get("retry")
    if node is None:
        return Retry()
    if isinstance(node.value, int):
        return Retry(attempts=owner.count("retry", 1))
    fields = Fields(node, problems, "`retry`")
    fields.only(("attempts", "backoff", "delay", "max_delay", "jitter"))
    base = Retry()
    delay, max_delay = fields.duration("delay"), fields.duration("max_delay")
    backoff: Any = fields.choice("backoff", ("fixed", "linear", "exponential"), base.backoff)
    return Retry(
        attempts=fields.count("attempts", base.attempts),
        backoff=backoff,
        delay=base.delay if delay is None else delay,
        max_delay=base.max_delay if max_delay is None else max_delay,
        jitter=fields.flag("jitter", default=base.jitter),
    )


def _params(top: Fields, problems: Problems) -> dict[str, Param]:
    node = top.get("params")
    if node is None:
        return {}
    if not isinstance(node.value, dict):
        problems.add(node, f"`params` must be a mapping, not {node.kind}")
        return {}
    params = {}
    for name, child in node.value.items():
        if not isinstance(child.value, dict):
            params[name] = Param(default=child.plain())
            continue
        fields = Fields(child, problems, f"param `{name}`")
        fields.only(("type", "required", "default", "choices", "description"))
        kind: Any = fields.choice("type", ("string", "integer", "number", "boolean", "path", "list"), "string")
        default, choices = fields.get("default"), fields.get("choices")
        params[name] = Param(
            type=kind,
            required=fields.flag("required", default=False),
            default=default.plain() if default else None,
            choices=tuple(choices.plain()) if choices and isinstance(choices.value, list) else (),
            description=fields.text("description"),
        )
    return params


def _checkpoint(top: Fields, problems: Problems) -> CheckpointPolicy:
    fields = Fields(top.get("checkpoint") or _empty(), problems, "`checkpoint`")
    fields.only(("interval", "history", "on_error"))
    base = CheckpointPolicy()
    on_error: Any = fields.choice("on_error", ("stop", "warn"), base.on_error)
    interval = fields.duration("interval")
    return CheckpointPolicy(
        interval=base.interval if interval is None else max(interval, 0.1),
        history=fields.count("history", base.history, least=0),
        on_error=on_error,
    )


def _check_needs(
    steps: list[Step], needed: list[tuple[str, Node]], places: dict[str, Node], problems: Problems
) -> bool:
    """Note needs that lead nowhere or in a circle; whether all is well."""
    known = set(places)
    unknown = False
    for name, node in needed:
        if name not in known:
            unknown = True
            problems.add(node, f"no step `{name}`; there is {', '.join(sorted(known)[:12])}")
    if unknown:
        return False
    cycle = find_cycle({step.id: step.needs for step in steps})
    if cycle:
        problems.add(places[cycle[0]], f"the steps need each other in a circle: {' → '.join(cycle)}")
    return not cycle


def _empty() -> Node:
    return Node(value={}, line=1, column=1)
