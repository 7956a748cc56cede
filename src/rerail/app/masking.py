"""Secrets of a run: the mask that hides them, and the rejection of values that hold one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from rerail.core.masking import Mask
from rerail.core.model import Pipeline, RunHeader, RunOptions, every_step
from rerail.errors import RerailError, UsageError
from rerail.ports import LoadedRun, Store


def mask_of(pipeline: Pipeline, options: RunOptions) -> Mask:
    """Return the mask of a run's secrets; raise UsageError for one that is missing or empty."""
    values: dict[str, str] = {}
    for name in dict.fromkeys((*pipeline.secrets, *options.secrets)):
        value = os.environ.get(name)
        if not value:
            what = "is not set" if value is None else "is empty"
            raise UsageError(f"the secret {name} {what} in the environment", hint=f"export {name}=…, then run it again")
        values[name] = value
    return Mask.of_variables(values)


def present_secrets(pipeline: Pipeline, options: RunOptions) -> Mask:
    """Return a mask of the secrets that are set, for messages before all of them are checked."""
    names = (*pipeline.secrets, *options.secrets)
    return Mask.of_variables({name: value for name in names if (value := os.environ.get(name))})


def secrets_of(store: Store, recording: LoadedRun) -> Mask:
    """Return a mask of the secrets of a run that are set, without executing it."""
    names, _ = secret_names(store, recording)
    return Mask(value for name in names if (value := os.environ.get(name)))


def secret_names(store: Store, recording: LoadedRun) -> tuple[tuple[str, ...], bool]:
    """Return the names of the secrets of a run, and whether these are all."""
    names = recording.state.options.secrets
    try:
        from rerail.loaders.yaml import load_pipeline  # YAML: commands that only read a run start without it

        text = store.pipeline(recording.header.run_id, recording.state.pipeline_sha256)
        return (*load_pipeline(text, recording.header.pipeline_path).secrets, *names), True
    except RerailError:
        return names, False


@contextlib.contextmanager
def hiding(mask: Mask) -> Iterator[None]:
    """Mask secrets in errors that are raised while the context is active."""
    try:
        yield
    except RerailError as error:
        error.message = mask.text(error.message)
        error.args = (error.message,)
        raise
    except OSError as error:
        if isinstance(error.filename, str):
            error.filename = mask.text(error.filename)
        raise


def require_no_secrets(mask: Mask, given: Mapping[str, Any]) -> None:
    """Reject values that are recorded unmasked and hold a secret; raise UsageError with the name."""
    for name, value in given.items():
        if mask.holds(name) or mask.value(value) != value:
            raise UsageError(
                f"`{mask.text(name)}` holds {mask.culprit([name, value])}; secrets are taken from the environment"
                " and never stored",
                hint="${{ env.NAME }} in the pipeline",
            )


def require_no_secrets_in_header(mask: Mask, header: RunHeader, run_dir: str, work_dir: str) -> None:
    """Reject a header that holds a secret; raise UsageError.

    run.json is written unmasked, and so is the path from the pipeline to the results of its maps.
    """
    if not mask:
        return
    paths = {"the path of the pipeline": header.pipeline_path, "the directory of the pipeline": header.work_dir}
    if run_dir:
        paths["the path of the state directory"] = os.path.relpath(run_dir, work_dir)
    names = {f"--secret {name}": name for name in header.options.secrets}
    require_no_secrets(
        mask, {**header.params, **header.labels, **names, **paths, "the name of the pipeline": header.pipeline}
    )


def require_no_secrets_in_pipeline(mask: Mask, pipeline: Pipeline, text: bytes, path: str) -> None:
    """Reject a pipeline whose text or names hold a secret; raise UsageError.

    The file is kept with the run, and so are the names in it, however they are written.
    """
    if not mask:
        return
    names = [*(step.id for _, step in every_step(pipeline)), *pipeline.hooks, pipeline.labels]
    if mask.data(text) != text or mask.holds(names):
        which = mask.culprit(text if mask.data(text) != text else names)
        raise UsageError(
            f"{mask.text(_place_of(text, path, mask))} holds the value of {which}; secrets are taken from the environment"
            " and never stored",
            hint="${{ env.NAME }} in the pipeline",
        )


def _place_of(text: bytes, path: str, mask: Mask) -> str:
    """Return the file of a pipeline, and the first line, that holds a secret."""
    from rerail.loaders.bundle import split  # only for a file that is rejected

    root, included = split(text)
    files = {path: root, **{os.path.join(os.path.dirname(path), name): data for name, data in included.items()}}
    for file, data in files.items():
        for number, line in enumerate(data.splitlines(), 1):
            if mask.data(line) != line:
                return f"{file}:{number}"
    return path
