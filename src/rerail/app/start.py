"""Start of a run: its request, header, run id and first record."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from rerail import processes
from rerail.app.checks import params_of, refuse_misplaced, refuse_odd_text
from rerail.app.claims import RunClaims, concurrency_group
from rerail.app.execution import Functions, InvocationRequest, RunOutcome, teller_of
from rerail.app.masking import mask_of, refuse_secret_header, refuse_secret_pipeline, refuse_secrets
from rerail.app.planning import absolute, load, relative, sha256
from rerail.core.events import RunStarted
from rerail.core.formats import HEADER
from rerail.core.model import Pipeline, RunHeader, RunOptions
from rerail.core.plan import PlanOptions
from rerail.core.planner import plan
from rerail.core.state import RunState
from rerail.errors import RerailError
from rerail.ports import Reporter, Store
from rerail.version import VERSION


class StartRequest(InvocationRequest, frozen=True, kw_only=True):
    """Request for a new run."""

    pipeline_path: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    run_id: str | None = None
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
    # Loaded to execute: planning and dry runs start without it.
    from rerail.app.wiring import ExecuteRequest, check_plugins, execute
    from rerail.artifacts.paths import place_of

    now = datetime.now(UTC)
    check_plugins(request)
    mask = mask_of(pipeline, request.options)
    refuse_secret_pipeline(mask, pipeline, text, request.pipeline_path)
    refuse_secrets(mask, {**request.params, **request.labels, "run id": request.run_id})
    header = header_of(pipeline, request, params_of(pipeline, request.params), now, base_dir)
    header = msgspec.structs.replace(header, concurrency=concurrency_group(pipeline, header))
    work_dir = absolute(header.work_dir, base_dir)
    refuse_secret_header(mask, header, store.directory(header.run_id), work_dir)
    files = place_of(work_dir, base_dir, store.root)
    refuse_misplaced(pipeline, files, request.pipeline_path)
    decisions = plan(pipeline, RunState(), options=PlanOptions(start=request.execute.start))

    def discard() -> None:
        with contextlib.suppress(RerailError, OSError):
            store.delete(header.run_id)  # it has not begun

    with contextlib.ExitStack() as owned:
        claims = RunClaims(store, pipeline, header, work_dir, allow_concurrent=request.execute.allow_concurrent)
        log, waited = claims.take("rerail run", lambda: store.create(header, text), teller_of(reporters), discard)
        owned.callback(log.close)
        owned.callback(claims.release)
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
        run_id=request.run_id or new_run_id(now),
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
    refuse_odd_text(header)
    return header


def new_run_id(now: datetime) -> str:
    """Return a run id that sorts by time to the millisecond; its random end keeps simultaneous starts apart."""
    import secrets

    alphabet = "abcdefghjkmnpqrstvwxyz"
    tail = "".join(secrets.choice(alphabet) for _ in range(5))
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03d}{tail}"


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
