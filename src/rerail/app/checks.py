"""Checks before a run is created or resumed: params, text, artifact paths and schemas."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rerail.core.expressions import placeholders
from rerail.core.model import Pipeline, RunHeader
from rerail.core.params import resolve
from rerail.core.values import problem
from rerail.errors import PipelineInvalid, UsageError

if TYPE_CHECKING:  # commands that only list and show start without it
    from rerail.artifacts.paths import ProjectPaths


def params_of(pipeline: Pipeline, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a run; raise PipelineInvalid with all problems of the given ones."""
    values, problems = resolve(pipeline.params, given)
    if problems:
        raise PipelineInvalid(problems, hint="rerail run PIPELINE -p NAME=VALUE")
    return values


def check_text(header: RunHeader) -> None:
    wrong = problem(header.params, "params")
    try:
        msgspec.json.encode(header)
    except UnicodeEncodeError:
        wrong = wrong or "a name or path is not text"
    if wrong:
        raise UsageError(f"{wrong}: names, paths, params and labels must be UTF-8", hint="rerail run --help")


def check_paths(pipeline: Pipeline, place: ProjectPaths, path: str) -> None:
    """Reject artifacts and inputs outside the project, and invalid schemas; raise PipelineInvalid."""
    from rerail.artifacts.paths import PathNotAllowed  # only for pipelines that name files
    from rerail.walker import is_pattern

    problems = []
    made = {artifact.path for step in pipeline.steps for artifact in step.artifacts}
    for step in pipeline.steps:
        for declared in (*step.artifacts, *step.inputs):
            where = f"{path}:{step.line}: step `{step.id}`"
            if declared.schema and declared.schema not in made and (bad := _bad_schema(declared.schema, place)):
                problems.append(f"{where}: the schema {declared.schema} {bad}")
            if placeholders.has_placeholders(declared.path) or is_pattern(declared.path):
                continue
            try:
                place.full(declared.path, external=declared.external)
            except PathNotAllowed as error:
                problems.append(f"{where}: {error}")
    if problems:
        raise PipelineInvalid(problems, hint="correct it, then run it again")


def _bad_schema(schema: str, place: ProjectPaths) -> str:
    try:
        with open(os.path.join(place.work_dir, schema), "rb") as file:
            msgspec.json.decode(file.read())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"is not JSON: {error}"
    return ""
