"""Proving a run: the whole chain from its first byte, and that its caches say the same."""

from __future__ import annotations

import hashlib
import os

from rerail import durable
from rerail.core.checkpoint import state_of
from rerail.core.state import fold
from rerail.errors import StateDamaged
from rerail.ports import Proof, Store
from rerail.stores import journal, segments


def verify(store: Store, run_id: str) -> Proof:
    """Prove a run; raises StateDamaged, StateUnreadable, FormatTooNew."""
    recording = store.read(run_id)  # by way of the checkpoint, as resume does
    path = store.directory(run_id)
    chain = segments.load(path, run_id, None)
    state = fold(journal.decode_all(chain.lines), state_of(chain.base) if chain.base else None)
    if not store.ownership(run_id).alive and chain.base is None and state != recording.state:
        raise StateDamaged(f"{path}: the checkpoint contradicts the journal", hint=f"rerail repair {run_id}")
    notices = list(recording.notices)
    frozen = store.pipeline(run_id, "")
    if state.pipeline_sha256 and hashlib.sha256(frozen).hexdigest() != state.pipeline_sha256:
        store.pipeline(run_id, state.pipeline_sha256)  # an older copy may be the one in use; raises if none is
    numbers = segments.numbers(path)
    size = sum(journal.written(durable.read_file(os.path.join(path, segments.file_name(number)))) for number in numbers)
    return Proof(records=state.seq, segments=len(numbers), bytes=size, notices=tuple(notices))
