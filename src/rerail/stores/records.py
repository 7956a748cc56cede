"""From the verified lines of a journal to events, and from them to the state of a run."""

from __future__ import annotations

from collections.abc import Iterable

from rerail.core.events import Event
from rerail.core.state import RunState, fold
from rerail.errors import FormatTooNew, IllegalEvent, StateDamaged
from rerail.stores import journal
from rerail.stores.segments import Chain


def folded(chain: Chain, run_id: str, start: RunState | None) -> RunState:
    """The state a journal tells of, from its beginning or from where a snapshot stands."""
    try:
        return fold(decoded(chain, run_id), start)
    except IllegalEvent as error:
        raise StateDamaged(
            f"run {run_id}: the journal tells what cannot have happened: {error.message}", hint=f"rerail repair {run_id}"
        ) from error


def decoded(chain: Chain, run_id: str) -> Iterable[tuple[int, Event]]:
    """Its records; raises StateDamaged or FormatTooNew for one that is none."""
    try:
        yield from journal.decode_all(chain.lines)
    except journal.Undecodable as error:
        if error.known:
            raise StateDamaged(
                f"run {run_id}: record {error.seq} of the journal makes no sense: {error}",
                hint=f"rerail repair {run_id}",
            ) from error
        raise FormatTooNew(
            f"run {run_id}: the journal holds a record this rerail does not know: {error}",
            hint="pip install --upgrade rerail",
        ) from error
