"""What a life that was cut off left behind: attempts that nobody ended, how far they were and what they had cost.

Reads; changes nothing, but for processes that live on: whoever owns the run ends them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import datetime

import msgspec

from rerail import processes
from rerail.core import inflight
from rerail.core.events import AttemptProgress
from rerail.core.masking import Mask
from rerail.core.model import Pipeline, RunHeader, RunOptions
from rerail.core.money import COST, OTHER_TOKENS, TOKENS
from rerail.core.state import Unit
from rerail.errors import RerailError
from rerail.ports import LoadedRun, RunWriter, Store

_PLAIN = frozenset((COST, *TOKENS, *OTHER_TOKENS))  # names of ours: no secret can be in them


def process_tag(log: RunWriter) -> str:
    """What every process of this run bears in its environment, wherever the run is moved; a copy has another."""
    return _mark_text(log.recording.header, log.identity)


def process_tag_in(store: Store, run_id: str) -> str:
    """The mark of a run, for who does not own it; '' if it has none yet."""
    header, identity = store.header(run_id), store.identity(run_id)
    return _mark_text(header, identity) if header and identity else ""


def _mark_text(header: RunHeader, identity: str) -> str:
    return f"{header.run_id}@{header.created_at}@{identity}"


def invocation_of(header: RunHeader, began: datetime | None) -> str:
    """What an invocation of a run is called wherever the run is copied to; '' if there was none."""
    return f"{header.run_id}@{header.created_at}@{began.isoformat()}" if began is not None else ""


def end_processes(log: RunWriter) -> int:
    """End what the lives of a run that are over have left running; how many processes that were.

    For who owns the run: nothing of it may run then, and whatever does could still write what is looked at next.
    """
    # One that was just being started when its life ended shows itself a moment later.
    pauses = (0.005,) if log.recording.state.status == "running" else ()
    marks = [_mark_text(log.recording.header, one) for one in (log.identity, log.former_identity) if one]
    return sum(processes.kill_tagged(mark, pauses=pauses) for mark in marks)


def ended_words(count: int) -> str:
    """How it is said that processes were ended."""
    return f"ended {count} process{'es' if count > 1 else ''} left over from the previous invocation"


def present_secrets(pipeline: Pipeline, options: RunOptions) -> Mask:
    """A mask of those secrets that are there, for messages before it is known whether all are."""
    names = (*pipeline.secrets, *options.secrets)
    return Mask(value for name in names if (value := os.environ.get(name)))


@contextlib.contextmanager
def hiding(mask: Mask) -> Iterator[None]:
    """Whatever goes wrong meanwhile is told without secrets."""
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


def last_traces(store: Store, recording: LoadedRun, mark: str = "") -> dict[Unit, AttemptProgress]:
    """How far the attempts were that nobody has ended, nor taken up: by what they left, and by what was saved."""
    if not inflight.in_flight(recording.state):
        return {}
    mark = mark or process_tag_in(store, recording.header.run_id)
    from rerail.engine.spec import attempt_name
    from rerail.executors.channels import DeadChannels

    remains = DeadChannels(mark, invocation_of(recording.header, recording.state.invoked_at))
    found = inflight.last_seen(recording.state, lambda unit, attempt: remains.of(attempt_name(unit, attempt)))
    told = {unit: seen for unit, seen in found.items() if seen is not None}
    if any(seen.models or not seen.metrics.keys() <= _PLAIN for seen in told.values()):
        hide = _hiding(store, recording)
        told = {unit: hide(seen) for unit, seen in told.items()}
    return told


def secrets_of(store: Store, recording: LoadedRun) -> Mask:
    """A mask of those secrets of a run that are there, for who drives nothing."""
    names, _ = _secret_names(store, recording)
    return Mask(value for name in names if (value := os.environ.get(name)))


def _secret_names(store: Store, recording: LoadedRun) -> tuple[tuple[str, ...], bool]:
    """The names of the secrets of a run, and whether those are all."""
    names = recording.state.options.secrets
    try:
        from rerail.loaders.yaml import load_pipeline

        text = store.pipeline(recording.header.run_id, recording.state.pipeline_sha256)
        return (*load_pipeline(text, recording.header.pipeline_path).secrets, *names), True
    except RerailError:
        return names, False


def _hiding(store: Store, recording: LoadedRun) -> Callable[[AttemptProgress], AttemptProgress]:
    """What hides the secrets of a run in names that an attempt has chosen; who does not know them all hides the names."""
    names, is_whole = _secret_names(store, recording)
    values = [os.environ.get(name, "") for name in names]
    mask = Mask(values) if is_whole and all(values) else None
    return lambda seen: _plain(seen) if mask is None else _masked(seen, mask)


def _masked(seen: AttemptProgress, mask: Mask) -> AttemptProgress:
    return mask.struct(seen)


def _plain(seen: AttemptProgress) -> AttemptProgress:
    """Without names that the attempt has chosen: a secret may be among them."""
    metrics = {name: value for name, value in seen.metrics.items() if name in _PLAIN}
    return msgspec.structs.replace(seen, metrics=metrics, models={})


__all__ = [
    "end_processes",
    "ended_words",
    "hiding",
    "invocation_of",
    "last_traces",
    "present_secrets",
    "process_tag",
    "process_tag_in",
    "secrets_of",
]
