"""Inspection of a pipeline file without running it: all its errors, and warnings about later failures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from rerail.app.checks import diagnostic_of, misplaced
from rerail.core.masking import Mask
from rerail.core.model import Loop, Map, Pipeline, Run, Step, Write
from rerail.core.shell.programs import started_files
from rerail.errors import Diagnostic, PipelineInvalid
from rerail.ports import Store
from rerail.scripts import script_problem
from rerail.text import nearest


class Inspection(NamedTuple):
    """A pipeline file as far as it can be read, and its problems."""

    pipeline: Pipeline | None
    diagnostics: tuple[Diagnostic, ...]

    @property
    def failed(self) -> bool:
        return any(one.severity == "error" for one in self.diagnostics)


def inspect(path: str, store: Store) -> Inspection:
    """Return the errors and warnings of a pipeline file, with secrets masked."""
    # YAML: commands that only read a run start without it.
    from rerail.artifacts.paths import place_of
    from rerail.loaders.yaml import inspected, read_pipeline_file

    try:
        data = read_pipeline_file(path)
    except PipelineInvalid as error:
        return Inspection(None, error.diagnostics)
    pipeline, _, problems = inspected(data, path, strict=True)
    found = problems.diagnostics
    if pipeline is not None and not problems.failed:
        directory = os.path.dirname(os.path.abspath(path))
        found += misplaced(pipeline, place_of(directory, store.base_dir, store.root), path, data)
        found += _scripts(pipeline, directory, path, data)
    mask = Mask(value for name in problems.declared if (value := os.environ.get(name)))
    masked = (one.masked(mask.text) for one in found) if mask else iter(found)
    return Inspection(pipeline, tuple(sorted(masked, key=lambda one: (one.file, one.line, one.column))))


def _scripts(pipeline: Pipeline, directory: str, path: str, data: bytes) -> Iterator[Diagnostic]:
    """Yield warnings about the files that `run:` lines start and that could not be started now."""
    steps = list(_own_steps((*pipeline.steps, *pipeline.finally_)))
    made = {os.path.normpath(artifact.path) for step in steps for artifact in step.artifacts}
    made |= {os.path.normpath(step.action.path) for step in steps if isinstance(step.action, Write)}
    for step in steps:
        if not isinstance(step.action, Run) or "${{" in step.cwd:
            continue
        for named in started_files(step.action.script):
            file = os.path.normpath(os.path.join(step.cwd, named))
            if _is_made(file, made):
                continue
            problem = script_problem(os.path.join(directory, file), named)
            if problem is not None:
                message, fix = problem
                if not fix and (near := _beside(os.path.join(directory, file))):
                    fix = f"did you mean `{os.path.join(os.path.dirname(named), near)}`?"
                fix = fix or "if a step makes it, declare it in its `artifacts`"
                yield diagnostic_of(
                    step, named, f"step `{step.id}`: {message}", path, data, code="script", severity="warning", fix=fix
                )


def _own_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Yield the steps that stand in the file itself, at any depth."""
    for step in steps:
        yield step
        yield from _own_steps(step.on_failure)
        if isinstance(step.action, Map | Loop):
            yield from _own_steps(step.action.steps)


def _is_made(file: str, made: set[str]) -> bool:
    """Return whether a step makes a file: it, a directory around it, or a pattern for it is declared."""
    return any(file == one or file.startswith(one + os.sep) or "${{" in one or fnmatchcase(file, one) for one in made)


def _beside(path: str) -> str:
    """Return the name of a file in the same directory that may be meant; '' if there is none."""
    directory, name = os.path.split(path)
    try:
        return nearest(name, sorted(os.listdir(directory)))
    except OSError:
        return ""
