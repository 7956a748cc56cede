"""pipeline.yaml → Pipeline: every problem at once, each with file:line:column."""

from __future__ import annotations

import os
import re
import stat
from typing import Any

from rerail.core.model import CheckpointPolicy, Param, Pipeline
from rerail.core.params import wrong_choice, wrong_default
from rerail.errors import PipelineInvalid
from rerail.loaders.document import MAX_BYTES, Malformed, Node, parse
from rerail.loaders.fields import Fields, Problems
from rerail.loaders.steps import DEFAULTABLE, StepReader

TOP = tuple("name labels params env secrets defaults checkpoint steps finally".split())
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_pipeline_file(path: str) -> bytes:
    """The bytes of a pipeline file; raises PipelineInvalid for anything that is not one."""
    hint = "rerail run PIPELINE"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PipelineInvalid([f"{path}: cannot be read: {why}"], hint=hint) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise PipelineInvalid([f"{path}: not a regular file"], hint=hint)
        if status.st_size > MAX_BYTES:
            raise PipelineInvalid([f"{path}: {status.st_size} bytes; {MAX_BYTES} at most"], hint=hint)
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PipelineInvalid([f"{path}: cannot be read: {error.strerror}"], hint=hint) from None
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
        raise PipelineInvalid(problems.lines, hint=f"rerail check {path}, once it is corrected")
    return pipeline


def _pipeline(root: Node, problems: Problems, path: str) -> Pipeline:
    top = Fields(root, problems, "the pipeline")
    top.only(TOP)
    defaults = Fields(top.get("defaults") or Node(value={}, line=1, column=1), problems, "`defaults`")
    defaults.only(DEFAULTABLE)
    params = _params(top, problems)
    reader = StepReader(problems, defaults, set(params), top.get("env"))
    node = top.get("steps")
    if node is None and isinstance(root.value, dict):
        problems.add(root, "the pipeline has no `steps`")
    steps = reader.with_hooks(reader.main(node)) if node else ()
    stem = os.path.basename(path).rsplit(".", 1)[0]
    return Pipeline(
        name=top.text("name", stem) or stem,
        labels=top.texts("labels"),
        env=top.variables("env"),
        params=params,
        checkpoint=_checkpoint(top, problems),
        secrets=_secrets(top, problems),
        steps=steps,
        finally_=reader.hooks(top.get("finally"), "finally", {step.id for step in steps}),
    )


def _secrets(top: Fields, problems: Problems) -> tuple[str, ...]:
    names = top.names("secrets") or ()
    for name, node in names:
        if not _VARIABLE.fullmatch(name):
            problems.add(node, f"{name[:60]!r} cannot be the name of a variable; `secrets` lists names, not values")
    return tuple(name for name, _ in names)


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
            params[name] = Param(type=_natural_type(child.value), default=child.plain())
            continue
        fields = Fields(child, problems, f"param `{name}`")
        fields.only(("type", "required", "default", "choices", "description"))
        kind: Any = fields.choice("type", ("string", "integer", "number", "boolean", "path", "list"), "string")
        default, choices = fields.get("default"), fields.get("choices")
        if choices and not isinstance(choices.value, list):
            problems.add(choices, f"`choices` of param `{name}` must be a list, not {choices.kind}")
            choices = None
        params[name] = Param(
            type=kind,
            required=fields.flag("required", default=False),
            default=default.plain() if default else None,
            choices=tuple(choices.plain()) if choices else (),
            description=fields.text("description"),
        )
        if default and params[name].required:
            problems.add(default, f"param `{name}` is required, so its default would never be used")
        for node, wrong in ((choices, wrong_choice(params[name])), (default, wrong_default(params[name]))):
            if node and wrong:
                problems.add(node, f"param `{name}`: {wrong}")
    return params


def _natural_type(value: Any) -> Any:
    """`n: 3` declares an integer whose default is 3."""
    kinds: dict[type, str] = {bool: "boolean", int: "integer", float: "number", list: "list"}
    return kinds.get(type(value), "string")


def _checkpoint(top: Fields, problems: Problems) -> CheckpointPolicy:
    fields = Fields(top.get("checkpoint") or Node(value={}, line=1, column=1), problems, "`checkpoint`")
    fields.only(("interval", "history", "on_error"))
    base = CheckpointPolicy()
    on_error: Any = fields.choice("on_error", ("stop", "warn"), base.on_error)
    interval = fields.duration("interval")
    return CheckpointPolicy(
        interval=base.interval if interval is None else max(interval, 0.1),
        history=fields.count("history", base.history, least=0),
        on_error=on_error,
    )
