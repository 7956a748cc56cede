"""Maps: the same steps for every item of a list, several items at once.

The list is durable before any item starts. An item of one plain step is that step in the instance named by its key; an
item of several steps is a frame. Outputs of items are not kept in memory: when the last item is durable, the results
are gathered from the journal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from rerail.core import item_list as lists
from rerail.core.events import Cause, Reason
from rerail.core.expressions.language import ExpressionError
from rerail.core.expressions.render import mentioned, shell
from rerail.core.item_list import ItemList, ItemListError, ItemListStopped
from rerail.core.items import Items, allowed_failures
from rerail.core.model import Map, Run
from rerail.core.state import RunState, UnitState
from rerail.core.unit_id import UnitId, item_within
from rerail.core.values import Usage
from rerail.engine.controllers import results
from rerail.engine.controllers.controller import Controller, ControllerHost
from rerail.engine.frame import Frame
from rerail.engine.launch import attempt_of
from rerail.engine.progress import record_cost
from rerail.engine.ready_queue import Task
from rerail.engine.spec import unit_name
from rerail.ports import Outcome

INLINE_BYTES = 64 * 1024  # of results in an output; larger ones are in a file only
LIST_BYTES = 64 * 1024 * 1024  # of the output of a command
SHOWN_FAILURES = 3


class MapController(Controller):
    """Controller of a map; the parent of items that are one step, the owner of frames of items that are several."""

    counted = False  # its items count against its own parallelism
    status = ""

    def __init__(self, host: ControllerHost, task: Task) -> None:
        super().__init__(host, task)
        assert isinstance(task.step.action, Map)
        self.action: Map = task.step.action
        self.item = task.unit.item
        self._parallel = self.action.parallel or host.spec.options.parallel
        self._listing = ItemList(keys=[], values=None, digest="")
        self._former: ItemList | None = None  # a recorded list that the output of an edited command replaces
        self._items = Items(marks=bytearray())
        self._cursor = 0
        self._since = (0, 0)  # where in the journal its items begin
        self._active = 0
        self._blocked = 0  # blocked items: they keep the map open, and hold no other item back
        self._stopped = ""  # the item after whose failure no further one starts
        self._body = host.body(task)

    @property
    def counts_inside(self) -> bool:
        return False

    # The list

    def begin(self) -> None:
        with contextlib.suppress(ItemListStopped):  # it stays running, and is interrupted with everything else
            self._begin()

    def _begin(self) -> None:
        record = self.state.unit(self.unit).items
        if record is not None and record.known == record.total:
            recorded = lists.recorded(self.host.recorder.find(lists.TAGS, self.step.id), self.unit)
            if recorded is not None and recorded.digest == record.digest:
                if self._has_another_command(recorded):
                    self._former = recorded  # `take_outcome` goes on
                    self._run_command()
                else:
                    self._go_on(recorded, record)
                return
            self.restart("its list was lost with damaged records")
        if self.action.over.kind == "command":
            self._run_command()
            return
        scope = self.host.scopes.of(self.task)
        try:
            raw = self.host.tools.source(self.action.over, scope)
            self._take_list(lists.listing(raw, self.action, scope))
        except ItemListError as error:
            self._refuse(str(error))

    def _refuse(self, why: str) -> None:
        self.end("failed", type="ItemsInvalid", message=why, retryable=False)

    def _run_command(self) -> None:
        """Run the command whose output is the list; `take_outcome` goes on."""
        number = self.state.unit(self.unit).attempts
        scope = self.host.scopes.of(self.task)
        try:
            attempt = attempt_of(self.host.spec, self.task, self.state, number, self.host.scopes)
            script, values = shell(self.action.over.value, scope, mentioned(attempt.env, self.action.over.value))
            attempt = msgspec.structs.replace(
                attempt,
                action=Run(script=script),
                values=values,
                capture={"items": self.action.over.form},
                most_captured=LIST_BYTES,
            )
            work = self.host.tools.kinds[Run].work(attempt)
        except ExpressionError as error:
            self._refuse(f"`over`: {error}")
            return
        self.host.run_own_attempt(self.task, attempt, work)

    def take_outcome(self, outcome: Outcome) -> None:
        """Take the output of the command as the list."""
        if outcome.status != "ok":
            message = f"`over`: {outcome.message}" if outcome.message else ""
            self.host.finish(self.task, msgspec.structs.replace(outcome, message=message))
            return
        self._count(outcome)
        raw = outcome.outputs["items"]
        if self.action.over.form == "lines":
            raw = [line for line in (text.removesuffix("\r") for text in raw) if line]
        try:
            new = lists.listing(raw, self.action, self.host.scopes.of(self.task))
        except ItemListError as error:
            self._refuse(str(error))
            return
        record = self.state.unit(self.unit).items
        if self._former is None or record is None:
            self._take_list(new)
        elif self._holds_no_secret(new):
            self._replace(self._former, record, new)
            self._start(new)

    def _count(self, outcome: Outcome) -> None:
        """Charge the cost of the command at once; it is recorded with the end of the map."""
        for warning in outcome.warnings:
            self.host.recorder.warn(f"{self.unit}: {warning}")
        if outcome.metrics:
            self.used = Usage(metrics=outcome.metrics, models=outcome.models)
            self.host.running.charge(self.unit)
            record_cost(self.host.recorder, self.host.clock, self.task, self.state.unit(self.unit).attempts, outcome)

    def _take_list(self, new: ItemList) -> None:
        if self._holds_no_secret(new):
            self._since = self.host.recorder.position  # earlier records are about other items
            self._record(new, None)
            self._start(new)

    def _holds_no_secret(self, new: ItemList) -> bool:
        """Return whether a list may be recorded; if not, end the map."""
        mask = self.host.spec.mask
        for at, key in enumerate(new.keys) if mask else ():
            item = [key, new.value(at)]
            if mask.value(item) != item:
                self._refuse(f"item {at + 1} holds a secret; items are recorded, and secrets never are")
                return False
        return True

    def _record(self, new: ItemList, kept: lists.ListDiff | None) -> None:
        new.source = self._source
        remembered = [item_within(item, self.unit.item) for item in self.state.inner] if kept is not None else ()
        for event in lists.records(self.unit, new, self.host.clock.now(), kept, remembered):
            self.host.recorder.stage(event)

    def _go_on(self, recorded: ItemList, record: Items) -> None:
        """Go on with the list of an earlier invocation, or with the current list of its source."""
        changed = self._listed_anew()
        if changed is not None and changed.digest != recorded.digest:
            if not self._holds_no_secret(changed):
                return
            self._replace(recorded, record, changed)
            recorded = changed
        self._start(recorded)

    def _replace(self, recorded: ItemList, record: Items, changed: ItemList) -> None:
        """Replace the recorded list; items that are in both keep their status."""
        kept = lists.diff(recorded, record.marks, changed)
        if changed.digest != recorded.digest:
            self.host.recorder.warn(f"{self.unit}: {kept.words}")
        self._record(changed, kept)

    def _has_another_command(self, recorded: ItemList) -> bool:
        """Return whether the command of the list was edited since it ran."""
        return self.host.spec.execute.changes != "keep" and recorded.source not in ("", self._source)

    @property
    def _source(self) -> str:
        return self.host.spec.definition(self.step).partition(".")[2] if self.action.over.kind == "command" else ""

    def _listed_anew(self) -> ItemList | None:
        """Return the list that the source holds now; None if it is a command, or under `--changes keep`."""
        if self.host.spec.execute.changes == "keep" or self.action.over.kind == "command":
            return None
        scope = self.host.scopes.of(self.task)
        try:
            return lists.listing(self.host.tools.source(self.action.over, scope), self.action, scope)
        except ItemListError as error:
            self.host.recorder.warn(f"{self.unit}: {error}; continuing with the recorded list")
            return None

    def _start(self, listing: ItemList) -> None:
        items = self.state.unit(self.unit).items
        assert items is not None
        few = lists.too_few(len(listing.keys), self.action)
        if few:  # a recorded list: `min_items` was edited since
            self._refuse(few)
            return
        self._listing, self._items = listing, items
        if self.action.on_item_failure == "stop" and items.failed:  # the map was interrupted after that, before its end
            self._stopped = f"an item of {self.unit}"
        if not listing.keys:
            self.host.recorder.warn(f"{self.unit}: no items, so nothing of it runs; `min_items: 1` makes that a failure")
        self._fill()

    # Items

    def _fill(self) -> None:
        """Open items while there is room; when none is left, end the map once its items are durable."""
        while self._active < self._parallel and not self.host.is_stopping and not self._stopped:
            index = self._items.next_pending(self._cursor)
            if index < 0:
                break
            self._cursor = index + 1
            self._active += 1
            self._open_item(index)
        left = -1 if self._stopped else self._items.next_pending(self._cursor)
        if self._active == 0 and left < 0:
            if self._blocked and not self._stopped:  # all items that are left are blocked
                self.outer.block(self.task)
            else:
                self.host.when_durable(self)

    def _open_item(self, index: int) -> None:
        item = self.unit.child(self._listing.keys[index])
        if not self.action.single:
            self.open_group(index, item, {"item": self._listing.value(index)})
            return
        step = self._body.steps[0]
        task = Task(step, item, self, index)
        record = self.state.unit(task.unit)
        wait = None if record.status == "pending" else self.host.recovery.remaining_wait(record)
        if record.status == "interrupted" and not step.idempotent:
            self.host.queue.in_doubt.append(str(task.unit))
            self._active -= 1
            self._blocked += 1
        elif wait is not None:
            self.host.queue.push_at(task, self.host.clock.monotonic() + wait)
        else:
            self.host.queue.push(task)

    # As the parent of items that are one step

    def names(self, task: Task) -> Mapping[str, Any]:
        assert task.index is not None
        return {**self.outer.values, "item": self._listing.value(task.index)}

    def lookup(self, name: str, state: RunState) -> UnitId:
        return self.outer.lookup(name, state)

    def outdated(self, task: Task, unit: UnitState, state: RunState) -> Reason | None:  # noqa: ARG002 - of TaskParent
        return None

    def required(self, task: Task) -> Reason | None:  # noqa: ARG002 - of TaskParent
        return None

    def allows_failure(self, task: Task) -> bool:
        return task.step.allow_failure or self.action.on_item_failure == "skip"

    def settle(self, task: Task, unit: UnitState) -> None:
        """Release nothing: no task depends on an item."""

    def fail(self, task: Task, *, allowed: bool) -> list[Task]:
        if not allowed and self.action.on_item_failure == "stop":
            self._stopped = self._stopped or str(task.unit)
        return []

    def leave(self, task: Task) -> None:
        assert task.index is not None
        self._left(task.index)

    def _left(self, index: int) -> None:
        if self._listing.values is not None:
            self._listing.values[index] = None  # no longer needed in this invocation
        self._active -= 1
        self._fill()

    def block(self, task: Task) -> None:  # noqa: ARG002 - of TaskParent
        self._active -= 1
        self._blocked += 1
        self._fill()

    def unblock(self, task: Task) -> None:  # noqa: ARG002 - of TaskParent
        if not self._active:
            self.outer.unblock(self.task)
        self._active += 1
        self._blocked -= 1

    # As the owner of items of several steps

    def frame_over(self, frame: Frame) -> None:
        unit = UnitId(self.step.id, frame.item)
        index = self.state.unit(unit).index
        assert index is not None
        if frame.failed or not frame.complete:
            allowed = self.action.on_item_failure == "skip"
            self.close_group(frame, None, allowed=allowed)
            if not allowed and self.action.on_item_failure == "stop":
                self._stopped = self._stopped or str(unit)
        else:
            self.close_group(frame, self.frame_outputs(frame))
        self._left(index)

    def frame_blocked(self, frame: Frame) -> None:  # noqa: ARG002 - of FrameOwner
        self.block(self.task)

    def frame_unblocked(self, frame: Frame) -> None:  # noqa: ARG002 - of FrameOwner
        self.unblock(self.task)

    # The end

    def on_durable(self) -> None:
        """End the map: its last item is durable."""
        if self.host.is_stopping:
            return
        items, action = self._items, self.action
        if self.host.recorder.write_error is not None:  # `checkpoint.on_error: warn`
            self.end("failed", type="ResultsLost", message="its results could not be recorded", retryable=False)
            return
        if self._stopped:
            self.end("failed", type="ItemFailed", message=f"stopped after {self._stopped} failed", retryable=False)
            return
        if items.next_pending(0) >= 0:  # a failed item was reopened while others ran
            self._cursor = 0
            self._fill()
            return
        allowed = allowed_failures(items.total, action.max_failures, action.max_failures_percent)
        if items.failed > allowed:
            self._fail(items, allowed)
            return
        try:
            outputs = self._results(items)
        except results.ResultsMissing as error:
            self._run_again(error.indexes)
            return
        except OSError as error:
            why = f"the results could not be kept: {error.strerror}"
            if not self.host.stop_unwritable(f"{self.unit}: {why}"):
                self.end("failed", type="ResultsUnwritable", message=why)
            return
        self.end("ok", outputs=outputs)

    def _run_again(self, indexes: list[int]) -> None:
        """Run completed items again whose records were lost to a repair."""
        self.host.recorder.warn(f"{self.unit}: the records of {len(indexes)} completed items are lost; they run again")
        for index in indexes:
            item = self.unit.child(self._listing.keys[index])
            lost = Reason("its record was lost", Cause(kind="record-lost"))
            self.host.recovery.invalidate(item, lost, index=index)
        self._cursor = 0
        self._fill()

    def _fail(self, items: Items, allowed: int) -> None:
        dead = [
            (unit, record.error.message.splitlines()[0] if record.error and record.error.message else "failed")
            for unit, record in self.state.units.items()
            if record.index is not None
            and record.status == "failed"
            and not record.allowed
            and unit.is_item_of(self.unit)
        ]
        told = "; ".join(f"{unit.item}: {message}" for unit, message in dead[:SHOWN_FAILURES])
        more = f" and {len(dead) - SHOWN_FAILURES} more" if len(dead) > SHOWN_FAILURES else ""
        message = f"{items.failed} of {items.total} items failed (max_failures: {allowed}): {told}{more}"
        self.end("failed", type="ItemsFailed", message=message)

    def _results(self, items: Items) -> dict[str, Any]:
        """Return the outputs of the map: counts, and the outputs of its items in the order of the list."""
        outputs: dict[str, Any] = {
            "total": items.total,
            "completed": items.completed,
            "failed": items.failed,
            "skipped": items.skipped,
        }
        events = self.host.recorder.find(results.TAGS, self.step.id, self._since)
        lines = results.result_lines(events, self.unit, self._listing.keys, items)
        path = self.host.recorder.save_results(unit_name(self.unit), lines)
        if path:
            outputs["results_file"] = os.path.relpath(path, self.host.spec.work_dir)
            outputs["results_sha256"] = results.digest_of(lines)
        if sum(map(len, lines)) <= INLINE_BYTES or not path:
            outputs["results"] = [msgspec.json.decode(line) for line in lines]
        else:
            self.host.recorder.warn(f"{self.unit}: its results are large: see {outputs['results_file']}")
        return outputs
