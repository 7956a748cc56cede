"""Loader of pipeline.yaml into a `Pipeline`: every problem at once, each with file:line:column."""

from __future__ import annotations

import os
import re
import shlex
import stat
from typing import Any

import msgspec

from rerail.core.expressions.language import VisibleNames
from rerail.core.model import MAX_CRASHES, CheckpointPolicy, Concurrency, Param, Pipeline, Step, Subpipeline
from rerail.core.params import wrong_choice, wrong_default
from rerail.errors import Diagnostic, PipelineInvalid
from rerail.loaders import bundle
from rerail.loaders.budgets import read_budget
from rerail.loaders.document import MAX_BYTES, Malformed, Node, parse
from rerail.loaders.expressions import Expressions
from rerail.loaders.fields import Fields, Problems
from rerail.loaders.source import SourceText
from rerail.loaders.steps import DEFAULTABLE, Enclosing, StepReader
from rerail.text import nearest, one_line

TOP = tuple(
    "name labels params env secrets defaults checkpoint budget concurrency max_crashes outputs steps finally".split()
)
CONCURRENCY_KEYS = ("group", "on_conflict")
ON_CONFLICT = ("refuse", "wait", "stop_other")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_pipeline_file(path: str) -> bytes:
    """Return the bytes of a pipeline file; raise PipelineInvalid for anything that is not one."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _no_such_file(path) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise _unreadable(path, f"cannot be read: {why}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _unreadable(path, "not a regular file")
        if status.st_size > MAX_BYTES:
            raise _unreadable(path, f"{status.st_size} bytes; {MAX_BYTES} at most")
        with open(fd, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)


def _unreadable(path: str, why: str) -> PipelineInvalid:
    return PipelineInvalid([Diagnostic(why, file=one_line(path), code="unreadable")], hint="rerail run PIPELINE")


def _no_such_file(path: str) -> PipelineInvalid:
    directory, name = os.path.split(path)
    try:
        there = sorted(entry for entry in os.listdir(directory or ".") if entry.endswith((".yaml", ".yml")))
    except (OSError, ValueError):
        there = []
    stem = name.rpartition(".")[0] or name
    guess = next((entry for entry in there if entry.rpartition(".")[0] == stem), "") or nearest(name, there)
    message = f"no such file: {one_line(path)}"
    if guess:
        guess = shlex.quote(os.path.join(directory, guess))
        return PipelineInvalid(
            [Diagnostic(f"{message} (did you mean {guess}?)", code="no-such-file")], hint=f"rerail run {guess}"
        )
    shown = f" (here are {', '.join(there[:5])}{', …' if len(there) > 5 else ''})" if there else ""
    return PipelineInvalid(
        [Diagnostic(f"{message}{shown}", code="no-such-file")], hint="rerail run PIPELINE, or rerail init to write one"
    )


def load_pipeline(data: bytes, path: str) -> Pipeline:
    """Return the pipeline that a file declares; raise PipelineInvalid with all its problems."""
    return load_bundle(data, path)[0]


def load_bundle(data: bytes, path: str) -> tuple[Pipeline, bytes]:
    """Return the pipeline, and its text joined with those of all included files; raise PipelineInvalid."""
    pipeline, text, problems = inspected(data, path, strict=False)
    if problems or pipeline is None:
        raise PipelineInvalid(problems.diagnostics, hint=f"rerail check {shlex.quote(path)}", secrets=problems.declared)
    return pipeline, text


def inspected(data: bytes, path: str, *, strict: bool) -> tuple[Pipeline | None, bytes, Problems]:
    """Return the pipeline as far as it can be read, its text, and its problems: with `strict` warnings, too."""
    text, included = bundle.split(data)
    problems = Problems(path, strict=strict)
    files = bundle.Files(path, included, read_pipeline_file)
    root = _parsed(text, problems)
    pipeline = _pipeline(root, problems, path, Includes(problems, files, (os.path.basename(path),))) if root else None
    return pipeline, bundle.join(text, files.used), problems


def _parsed(data: bytes, problems: Problems) -> Node | None:
    """Parse the document of a file; None if it is not one, which is reported."""
    root = None
    try:
        text = data.decode("utf-8-sig")
        problems.source = SourceText(text)
        root = parse(text)
        if root.value is None:
            fix = "`rerail init` writes a pipeline to start from"
            problems.add(root, "the file is empty", fix=fix, code="empty")
            root = None
    except UnicodeDecodeError as error:
        before = data[: error.start]
        fix = "save it as UTF-8"
        problems.source = SourceText(data.decode("utf-8-sig", errors="replace"))
        column = error.start - (before.rfind(b"\n") + 1)
        column = len(before[len(before) - column :].decode(errors="replace")) + 1
        problems.add_at(before.count(b"\n") + 1, column, "not UTF-8", fix=fix, code="encoding", length=1)
    except Malformed as error:
        problems.add_at(error.line, error.column, error.message, fix=error.fix, code="yaml", length=error.length)
    problems.secrets = _names_of_secrets(root, data)
    return root


def _names_of_secrets(root: Node | None, data: bytes) -> tuple[str, ...]:
    """Return the names of secrets that a file declares; of one that cannot be read, all variables that it names."""
    if root is None:
        text = data.decode(errors="replace")
        return tuple(name for name in os.environ if "secrets" in text and name in text)
    node = root.value.get("secrets") if isinstance(root.value, dict) else None
    names = node.plain() if node is not None else ()
    names = [names] if isinstance(names, str) else names
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


class Includes:
    """Reader of the pipelines that steps include."""

    def __init__(self, problems: Problems, files: bundle.Files, chain: tuple[str, ...]) -> None:
        self._problems = problems
        self._files = files
        self._chain = chain  # the files around this one
        self.secrets: list[str] = []

    def read(self, fields: Fields, enclosing: Enclosing) -> Subpipeline:
        """Read the pipeline that a step names."""
        named = fields.text("pipeline")
        node = fields.get("pipeline") or fields.node
        path = os.path.normpath(os.path.join(enclosing.directory, named))
        nothing = Subpipeline(path=path, steps=())
        if not named or "\0" in named or "${{" in named:
            self._problems.add(node, f"`pipeline` of {fields.what} must be the path of a file, without expressions")
            return nothing
        if path in self._chain:
            self._problems.add(node, f"a pipeline cannot be part of itself: {' → '.join((*self._chain, path))}")
            return nothing
        try:
            data = self._files.get(path)
        except PipelineInvalid as error:
            why = error.diagnostics[0]
            self._problems.add(node, f"`pipeline` of {fields.what}: {why.place}{': ' if why.file else ''}{why.message}")
            return nothing
        problems = self._problems.of(self._files.full(path))
        root = _parsed(data, problems)
        if root is None:
            return nothing
        deeper = Includes(problems, self._files, (*self._chain, path))
        directory = os.path.dirname(path)
        # No name outside is visible in it: it is a pipeline of its own, given params.
        place = Enclosing(prefix=enclosing.prefix, depth=enclosing.depth, directory=directory, include=deeper.read)
        pipeline = _pipeline(root, problems, path, deeper, place)
        self.secrets += pipeline.secrets
        return Subpipeline(
            path=path,
            steps=tuple(with_env(step, pipeline.env) for step in pipeline.steps),
            arguments=self._arguments(fields, pipeline),
            params=pipeline.params,
            outputs=pipeline.outputs,
            finally_=tuple(with_env(step, pipeline.env) for step in pipeline.finally_),
            budget=pipeline.budget,
        )

    def _arguments(self, fields: Fields, pipeline: Pipeline) -> dict[str, Any]:
        node = fields.get("with")
        if node is not None and not isinstance(node.value, dict):
            self._problems.add(node, f"`with` of {fields.what} must be a mapping, not {node.kind}")
            node = None
        given: dict[str, Any] = node.plain() if node else {}
        for name in given:
            if name not in pipeline.params:
                there = ", ".join(pipeline.params) or "none"
                self._problems.add(
                    node or fields.node, f"{fields.what}: its pipeline has no param `{name}`; it has {there}"
                )
        for name, param in pipeline.params.items():
            if param.required and name not in given:
                self._problems.add(fields.node, f"{fields.what}: its pipeline needs the param `{name}` in `with`")
        return given


def with_env(step: Step, env: dict[str, str]) -> Step:
    """Return a step of an included pipeline with that pipeline's environment; nested steps inherit it from the step."""
    if not env:
        return step
    hooks = tuple(with_env(hook, env) for hook in step.on_failure)
    return msgspec.structs.replace(step, env={**env, **step.env}, on_failure=hooks)


def _pipeline(
    root: Node, problems: Problems, path: str, includes: Includes, enclosing: Enclosing | None = None
) -> Pipeline:
    top = Fields(root, problems, "the pipeline")
    top.only(TOP)
    defaults = Fields(top.get("defaults") or Node(value={}, line=1, column=1), problems, "`defaults`")
    defaults.only(DEFAULTABLE)
    params = _params(top, problems)
    place = enclosing or Enclosing(include=includes.read)
    reader = StepReader(problems, defaults, set(params), top.get("env"), place)
    node = top.get("steps")
    if node is None and isinstance(root.value, dict):
        problems.add(root, "the pipeline has no `steps`")
    steps = reader.with_hooks(reader.main(node)) if node else ()
    stem = os.path.basename(path).rsplit(".", 1)[0]
    names = {step.id for step in steps}
    finally_ = reader.hooks(top.get("finally"), "finally", names)
    return Pipeline(
        name=top.text("name", stem) or stem,
        outputs=reader.outputs(top.get("outputs"), names),
        labels=top.texts("labels"),
        env=top.variables("env"),
        params=params,
        checkpoint=_checkpoint(top, problems),
        budget=read_budget(top),
        concurrency=_concurrency(top, problems, set(params)),
        max_crashes=top.count("max_crashes", MAX_CRASHES),
        secrets=tuple(dict.fromkeys((*_secrets(top, problems), *includes.secrets))),
        steps=steps,
        finally_=finally_,
    )


def _concurrency(top: Fields, problems: Problems, params: set[str]) -> Concurrency | None:
    """Read the concurrency group: its name alone, or with the behaviour if another run of it is live."""
    node = top.get("concurrency")
    if node is None:
        return None
    group, on_conflict = top.text("concurrency") if not isinstance(node.value, dict) else "", "refuse"
    if isinstance(node.value, dict):
        fields = Fields(node, problems, "`concurrency`")
        fields.only(CONCURRENCY_KEYS)
        group = fields.text("group")
        on_conflict = fields.choice("on_conflict", ON_CONFLICT, on_conflict)
        node = fields.get("group") or node
    if not group.strip() and isinstance(node.value, str | dict):
        problems.add(node, "`concurrency` needs the name of its `group`")
    Expressions(problems, VisibleNames(params=params, steps=(), all_steps=(), pipeline=True)).text(node)
    return Concurrency(group=group, on_conflict=on_conflict)  # type: ignore[arg-type]  # one of the choices


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
    """Return the type of a param from its default: `n: 3` declares an integer."""
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
        history=fields.count("history", base.history, minimum=0),
        on_error=on_error,
    )
