"""Checks before a run is created or resumed: params, text, artifact paths and schemas."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rerail.core.expressions import placeholders
from rerail.core.model import Pipeline, RunHeader, Step
from rerail.core.params import resolve
from rerail.core.values import problem
from rerail.errors import Diagnostic, PipelineInvalid, UsageError
from rerail.text import one_line

if TYPE_CHECKING:  # commands that only list and show start without it
    from rerail.artifacts.paths import ProjectPaths


def params_of(pipeline: Pipeline, given: Mapping[str, Any], path: str = "PIPELINE") -> dict[str, Any]:
    """Return the params of a run; raise PipelineInvalid with all problems of the given ones."""
    values, problems = resolve(pipeline.params, given)
    if problems:
        missing = [name for name, param in pipeline.params.items() if param.required and name not in given]
        wanted = " ".join(f"-p {name}=…" for name in missing) or ("-p NAME=VALUE" if pipeline.params else "")
        raise PipelineInvalid(
            [Diagnostic(problem, code="param") for problem in problems],
            hint=f"rerail run {shlex.quote(path)} {wanted}".rstrip(),
        )
    return values


def check_text(header: RunHeader) -> None:
    wrong = problem(header.params, "params")
    try:
        msgspec.json.encode(header)
    except UnicodeEncodeError:
        wrong = wrong or "a name or path is not text"
    if wrong:
        raise UsageError(f"{wrong}: names, paths, params and labels must be UTF-8", hint="rerail run --help")


def check_paths(pipeline: Pipeline, place: ProjectPaths, path: str, text: bytes = b"") -> None:
    """Reject artifacts and inputs outside the project, and invalid schemas; raise PipelineInvalid."""
    found = misplaced(pipeline, place, path, text)
    if found:
        raise PipelineInvalid(found, hint=f"rerail check {shlex.quote(path)}")


def misplaced(pipeline: Pipeline, place: ProjectPaths, path: str, text: bytes) -> list[Diagnostic]:
    """Return the artifacts and inputs outside the project, and the invalid schemas."""
    from rerail.artifacts.paths import PathNotAllowed  # only for pipelines that name files
    from rerail.walker import is_pattern

    found = []
    made = {artifact.path for step in pipeline.steps for artifact in step.artifacts}
    for step in pipeline.steps:
        for declared in (*step.artifacts, *step.inputs):
            subject = f"step `{step.id}`"
            if declared.schema and declared.schema not in made and (bad := _bad_schema(declared.schema, place)):
                message = f"{subject}: the schema {declared.schema} {bad}"
                found.append(diagnostic_of(step, declared.schema, message, path, text, code="schema"))
            if placeholders.has_placeholders(declared.path) or is_pattern(declared.path):
                continue
            try:
                place.full(declared.path, external=declared.external)
            except PathNotAllowed as error:
                found.append(diagnostic_of(step, declared.path, f"{subject}: {error}", path, text, code="path"))
    return found


def diagnostic_of(
    step: Step, piece: str, message: str, path: str, text: bytes, *, code: str, severity: str = "error", fix: str = ""
) -> Diagnostic:
    """Return a diagnostic about a piece of the text of a step, at its place if it is found there."""
    from rerail.loaders.source import SourceText  # only when there is a problem

    source = SourceText(text.decode("utf-8-sig", errors="replace"))
    line, column = source.find(step.line, 1, piece) or (step.line, 0)
    return Diagnostic(
        one_line(message),
        file=one_line(path),
        line=line,
        column=column,
        end=column + len(piece) if column else 0,
        severity=severity,
        code=code,
        help=fix,
        source=source.line(line),
    )


def _bad_schema(schema: str, place: ProjectPaths) -> str:
    try:
        with open(os.path.join(place.work_dir, schema), "rb") as file:
            msgspec.json.decode(file.read())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"is not JSON: {error}"
    return ""
