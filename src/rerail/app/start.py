"""Start of a run: its request, header, run id and first record."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from rerail import processes
from rerail.app.checks import check_paths, check_text, params_of
from rerail.app.claims import RunClaims, concurrency_group
from rerail.app.execution import Functions, InvocationRequest, RunOutcome, teller_of
from rerail.app.leftovers import sweep_channels
from rerail.app.masking import mask_of, require_no_secrets, require_no_secrets_in_header, require_no_secrets_in_pipeline
from rerail.app.planning import absolute, load, relative, sha256
from rerail.core.events import RunStarted
from rerail.core.formats import HEADER
from rerail.core.model import Pipeline, RunHeader, RunOptions
from rerail.core.plan import PlanOptions
from rerail.core.planner import plan
from rerail.core.run_ids import collides, generate
from rerail.core.state import RunState
from rerail.errors import RerailError, RunExists
from rerail.ports import Reporter, RunWriter, Store
from rerail.version import VERSION

T = TypeVar("T")


class StartRequest(InvocationRequest, frozen=True, kw_only=True):
    """Request for a new run."""

    pipeline_path: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    run_id: str | None = None  # None: a generated one
    generated: bool = False  # whether the id is: then no other may begin like it
    options: RunOptions = RunOptions()


def start(
    store: Store,
    request: StartRequest,
    reporters: Sequence[Reporter] = (),
    *,
    base_dir: str = "",
    functions: Functions | None = None,
) -> RunOutcome:
    """Start a new run and execute it to the end of this invocation."""
    pipeline, text = load(request.pipeline_path)
    return start_pipeline(store, pipeline, text, request, reporters, base_dir=base_dir, functions=functions)


def start_pipeline(
    store: Store,
    pipeline: Pipeline,
    text: bytes,
    request: StartRequest,
    reporters: Sequence[Reporter] = (),
    *,
    base_dir: str = "",
    functions: Functions | None = None,
) -> RunOutcome:
    """Start a run of a pipeline that is already loaded."""
    if request.run_id is None:

        def start_as(run_id: str) -> RunOutcome:
            named = msgspec.structs.replace(request, run_id=run_id, generated=True)
            return start_pipeline(store, pipeline, text, named, reporters, base_dir=base_dir, functions=functions)

        return with_new_id(store, pipeline.name, start_as)
    # Loaded to execute: planning and dry runs start without it.
    from rerail.app.wiring import ExecuteRequest, check_plugins, execute
    from rerail.artifacts.paths import place_of

    now = datetime.now(UTC)
    check_plugins(request)
    mask = mask_of(pipeline, request.options)
    require_no_secrets_in_pipeline(mask, pipeline, text, request.pipeline_path)
    require_no_secrets(mask, {**request.params, **request.labels, "run id": request.run_id})
    header = header_of(pipeline, request, params_of(pipeline, request.params, request.pipeline_path), now, base_dir)
    header = msgspec.structs.replace(header, concurrency=concurrency_group(pipeline, header))
    work_dir = absolute(header.work_dir, base_dir)
    require_no_secrets_in_header(mask, header, store.directory(header.run_id), work_dir)
    files = place_of(work_dir, base_dir, store.root)
    check_paths(pipeline, files, request.pipeline_path, text)
    decisions = plan(pipeline, RunState(), options=PlanOptions(start=request.execute.start, skip=request.execute.skip))

    def discard() -> None:
        with contextlib.suppress(RerailError, OSError):
            store.delete(header.run_id)  # it has not begun

    with contextlib.ExitStack() as owned:
        claims = RunClaims(store, pipeline, header, work_dir, allow_concurrent=request.execute.allow_concurrent)

        def create() -> RunWriter:
            return create_run(store, header, text, generated=request.generated)

        log, waited = claims.take("rerail run", create, teller_of(reporters), discard)
        owned.callback(log.close)
        owned.callback(claims.release)
        sweep_channels(store)
        invocation = ExecuteRequest(
            invocation=request,
            functions=functions or {},
            mask=mask,
            files=files,
            content=store.content,
            contested=claims.contested,
        )
        opening = started(pipeline, text, request.options, datetime.now(UTC) if waited else now)
        return execute(log, pipeline, decisions, opening, reporters, invocation)


def header_of(
    pipeline: Pipeline, request: StartRequest, params: dict[str, Any], now: datetime, base_dir: str
) -> RunHeader:
    """Return the header of a new run."""
    path = os.path.abspath(request.pipeline_path)
    header = RunHeader(
        format=HEADER.version,
        run_id=request.run_id or "",
        pipeline=pipeline.name,
        pipeline_path=relative(path, base_dir),
        work_dir=relative(os.path.dirname(path), base_dir),
        created_at=now.isoformat().replace("+00:00", "Z"),
        rerail=VERSION,
        params=params,
        labels={**pipeline.labels, **request.labels},
        options=request.options,
        pipeline_type=pipeline.type,
    )
    check_text(header)
    return header


def new_run_id(store: Store, pipeline: str) -> str:
    """Return an id for a new run: neither it nor its code begins any other id of the store."""
    import secrets  # only to start a run

    return generate(pipeline, store.runs(), secrets.choice)


def with_new_id(store: Store, pipeline: str, act: Callable[[str], T]) -> T:
    """Call `act` with a new run id; again with another one if a run like it was created meanwhile."""
    while True:
        run_id = new_run_id(store, pipeline)
        try:
            return act(run_id)
        except RunExists as error:
            if error.run_id != run_id:
                raise


def create_run(store: Store, header: RunHeader, text: bytes, *, generated: bool) -> RunWriter:
    """Create a run and own it. Raise RunExists if its generated id begins like another one.

    A generated id was new when it was chosen. Of two processes that chose the same code at once, the one that created
    its run last sees both: at least one gives its run up, before anything is in it.
    """
    log = store.create(header, text)
    if generated and collides(header.run_id, (other for other in store.runs() if other != header.run_id)):
        log.close()
        store.delete(header.run_id)
        raise RunExists(header.run_id)
    return log


def started(pipeline: Pipeline, text: bytes, options: RunOptions, now: datetime) -> RunStarted:
    """Return the first record of a run that this process executes."""
    return RunStarted(
        at=now,
        owner=processes.identity(now),
        pipeline_sha256=sha256(text),
        options=options,
        steps=len(pipeline.steps),
        hooks=pipeline.hooks,
    )
