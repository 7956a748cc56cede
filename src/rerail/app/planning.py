"""Planning: pipelines, params and secrets as given, checked, and the plan for a run that exists.

Reads; changes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from rerail.app.checks import check_paths
from rerail.app.execution import InvocationRequest
from rerail.app.masking import hiding, present_secrets, require_no_secrets_in_pipeline
from rerail.app.traces import last_traces
from rerail.core.audit import Audit
from rerail.core.checkpoint import Checkpoint, checkpoint_of
from rerail.core.expressions.language import Scope
from rerail.core.expressions.render import StepResults
from rerail.core.masking import Mask
from rerail.core.model import Map, Pipeline, RunOptions
from rerail.core.plan import Plan, PlanOptions
from rerail.core.planner import plan
from rerail.core.staleness import fingerprint
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId
from rerail.errors import PipelineChanged, PipelineInvalid, StateError, UsageError
from rerail.ports import ContentStore, LoadedRun, Store

if TYPE_CHECKING:  # commands that only list and show start without it
    from rerail.artifacts.paths import ProjectPaths


class ResumePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Existing run with the plan for its resume. Nothing was changed to make it."""

    run_id: str
    recording: LoadedRun
    pipeline: Pipeline
    text: bytes
    plan: Plan
    audit: Audit
    wishes: PlanOptions
    place: ProjectPaths
    notices: tuple[str, ...]
    mask: Mask = Mask()  # of the secrets that are set
    refreeze: bool = False  # the text in use is not the frozen one

    @property
    def shown(self) -> ResumePlan:
        """The same with secrets masked, for output: a file on disk may have any name."""
        if not self.mask:
            return self
        plan, audit = self.mask.struct(self.plan), self.mask.struct(self.audit)
        notices = tuple(map(self.mask.text, self.notices))
        return msgspec.structs.replace(self, plan=plan, audit=audit, notices=notices)

    @property
    def finished(self) -> bool:
        """Whether there is nothing to do."""
        return self.recording.state.status == "completed" and all(
            decision.decision == "reuse" for decision in self.plan.decisions
        )


def load(path: str) -> tuple[Pipeline, bytes]:
    """Return a pipeline and its text; raise PipelineInvalid."""
    # YAML: commands that only read a run start without it.
    from rerail.loaders.yaml import load_bundle, read_pipeline_file

    text = read_pipeline_file(path)
    try:
        return load_bundle(text, path)
    except PipelineInvalid as error:  # its messages quote the file
        mask = Mask(value for name in error.secrets if (value := os.environ.get(name)))
        raise PipelineInvalid([one.masked(mask.text) for one in error.diagnostics], hint=error.hint) from None


class ResumeRequest(InvocationRequest, frozen=True, kw_only=True):
    """Request to resume a run. `pipeline` is for pipelines that no file declares."""

    options: RunOptions | None = None  # None: as recorded
    pipeline: Pipeline | None = None
    progress: Callable[[int], None] = lambda _: None  # called with the bytes that the audit has read
    by: str = ""  # the person who accepts edited artifacts


def prepare(store: Store, run_id: str, request: ResumeRequest | None = None, *, base_dir: str = "") -> ResumePlan:
    """Read a run and plan its resume. Changes nothing. Raise PipelineChanged under `refuse`."""
    return plan_resume(store, store.read(run_id), request or ResumeRequest(), base_dir)


def plan_resume(store: Store, recording: LoadedRun, request: ResumeRequest, base_dir: str) -> ResumePlan:
    header, state = recording.header, recording.state
    if header.parent and not state.seq:
        raise UsageError(
            f"run {header.run_id}, a fork of {header.parent}, was interrupted before it inherited anything",
            hint=f"rerail delete {header.run_id} --yes, then fork again",
        )
    notices = list(recording.notices)
    frozen = _frozen(store, recording)
    path = absolute(header.pipeline_path, base_dir)
    if request.pipeline is not None:
        pipeline, text = request.pipeline, frozen or b""
    elif os.path.lexists(path):
        pipeline, text = _load_again(path, header.run_id)
    else:
        from rerail.loaders.yaml import load_pipeline  # YAML: commands that only read a run start without it

        text = store.pipeline(header.run_id, state.pipeline_sha256)
        pipeline = load_pipeline(text, path)
        notices.append(f"{path} is missing; using the copy of the last invocation")
    mask = present_secrets(pipeline, request.options or (state.options if state.seq else header.options))
    require_no_secrets_in_pipeline(mask, pipeline, text, header.pipeline_path)
    _check_steps(pipeline, (request.execute.start, request.execute.until, *request.execute.skip), header.run_id)
    if request.execute.changes == "refuse" and frozen is not None and text != frozen:
        _check_unchanged(pipeline, frozen, path, header.run_id)
    from rerail.artifacts.paths import place_of  # only for pipelines that name files

    place = place_of(absolute(header.work_dir, base_dir), base_dir, store.root)
    if request.execute.verify is not None:
        check_paths(pipeline, place, path)
    with hiding(mask):
        audit = run_audit(pipeline, state, place, store.content, request)
    wishes = PlanOptions(**msgspec.structs.asdict(request.execute), seen=last_traces(store, recording))
    if request.execute.changes != "keep" and not audit.flaws:
        relisted = _relisted(store, recording, pipeline, place)
        wishes = msgspec.structs.replace(wishes, relisted=relisted)
        if request.execute.changes == "refuse":
            _check_items(header.run_id, relisted)
    return ResumePlan(
        run_id=header.run_id,
        recording=recording,
        pipeline=pipeline,
        text=text,
        plan=plan(pipeline, state, audit, wishes),
        audit=audit,
        wishes=wishes,
        place=place,
        notices=tuple(notices),
        mask=mask,
        refreeze=text != frozen,
    )


def _check_steps(pipeline: Pipeline, wanted: Iterable[str], run_id: str) -> None:
    for step in wanted:
        if step and step not in {known.id for known in pipeline.steps}:
            there = ", ".join(known.id for known in pipeline.steps[:12])
            raise UsageError(f"the pipeline has no step `{step}`; it has {there}", hint=f"rerail show {run_id}")


def _check_items(run_id: str, relisted: Mapping[str, str]) -> None:
    for step, how in relisted.items():
        raise PipelineChanged(f"run {run_id}, map {step}: {how}", hint=f"rerail resume {run_id} --changes rerun|keep")


def _relisted(store: Store, recording: LoadedRun, pipeline: Pipeline, place: ProjectPaths) -> dict[str, str]:
    """Return unfinished maps whose source has changed, and how. Commands are not executed to find out."""
    state, header = recording.state, recording.header
    found: dict[str, str] = {}
    for step in pipeline.steps:
        unit = state.unit(UnitId(step.id))
        action = step.action
        if not isinstance(action, Map) or action.over.kind in ("command", "expression") or unit.items is None:
            continue
        if unit.status in ("completed", "skipped") and unit.fingerprint == fingerprint(step, pipeline.env):
            continue
        from rerail.adapters import item_sources  # only for maps
        from rerail.core import item_list as lists

        old = lists.recorded(store.find(header.run_id, lists.TAGS, step.id), UnitId(step.id))
        scope = scope_of(recording, store.directory(header.run_id))
        with contextlib.suppress(lists.ItemListError):
            new = lists.listing(item_sources.read(action.over, scope, place.work_dir), action, scope)
            if old is not None and old.digest != new.digest:
                found[step.id] = lists.diff(old, unit.items.marks, new).words
    return found


def scope_of(recording: LoadedRun, run_dir: str) -> Scope:
    """Return the scope of expressions for a run that is not being executed."""
    header, state = recording.header, recording.state
    run = {"id": header.run_id, "dir": run_dir, "status": state.status}
    return Scope(params=header.params, env=os.environ, steps=StepResults(state), run=run)


def run_audit(
    pipeline: Pipeline, state: RunState, place: ProjectPaths, content: ContentStore, request: ResumeRequest
) -> Audit:
    """Audit the artifacts of completed steps, and their inputs; empty if nothing is to be verified."""
    if request.execute.verify is None or not any(unit.artifacts or unit.inputs for unit in state.units.values()):
        return Audit()
    from rerail.artifacts.audit import Auditor  # only for runs with files

    return Auditor(place, content, request.execute.verify, request.progress).audit(pipeline, state)


def _load_again(path: str, run_id: str) -> tuple[Pipeline, bytes]:
    try:
        return load(path)
    except PipelineInvalid as error:
        raise PipelineInvalid(error.diagnostics, hint=f"rerail resume {run_id}, once it is corrected") from None


def _frozen(store: Store, recording: LoadedRun) -> bytes | None:
    """Return the pipeline text of the last invocation, if its copy is intact."""
    try:
        return store.pipeline(recording.header.run_id, recording.state.pipeline_sha256)
    except StateError:
        return None


def _check_unchanged(pipeline: Pipeline, frozen: bytes, path: str, run_id: str) -> None:
    from rerail.loaders.yaml import load_pipeline  # YAML: commands that only read a run start without it

    def definitions(of: Pipeline) -> dict[str, str]:
        return {step.id: fingerprint(step, of.env) for step in of.steps}

    old, new = definitions(load_pipeline(frozen, path)), definitions(pipeline)
    edited = sorted(step for step in old.keys() | new.keys() if old.get(step) != new.get(step))
    if edited:
        raise PipelineChanged(
            f"{path} was edited since run {run_id} started: {', '.join(edited)}",
            hint=f"rerail resume {run_id} --changes rerun|keep",
        )


def checkpoint(store: Store, recording: LoadedRun) -> Checkpoint:
    """Return the state of a run as in checkpoint.json."""
    from rerail.loaders.yaml import load_pipeline  # YAML: commands that only read a run start without it

    header = recording.header
    try:
        pipeline = load_pipeline(store.pipeline(header.run_id, recording.state.pipeline_sha256), header.pipeline_path)
    except (PipelineInvalid, StateError):
        pipeline = Pipeline(name=header.pipeline, steps=())  # without a file, of another version, or damaged
    return checkpoint_of(header, pipeline, recording.state)


def relative(path: str, base_dir: str) -> str:
    """Return a path relative to the directory of the store where it is inside, so that both can move together."""
    if base_dir and os.path.commonpath([os.path.abspath(base_dir), path]) == os.path.abspath(base_dir):
        return os.path.relpath(path, base_dir)
    return path


def absolute(path: str, base_dir: str) -> str:
    return os.path.normpath(os.path.join(base_dir, path)) if base_dir else path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
