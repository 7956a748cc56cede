"""Maps: the same steps for every item of a list, so many at once.

The list is durable before any item starts. An item of one plain step is that step, in the instance named by its key;
one of several steps is a frame. What items hand out is not kept in memory: when the last is durable, the results are
gathered from the journal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from rerail.core import item_list as lists
from rerail.core.expressions.language import ExpressionError
from rerail.core.expressions.render import mentioned, shell
from rerail.core.item_list import ItemList, ItemListError, ItemListStopped
from rerail.core.items import Items, allowed_failures, parent_of
from rerail.core.model import Map, Run
from rerail.core.state import RunState, Unit, UnitState, name
from rerail.core.values import Usage
from rerail.engine.controllers import results
from rerail.engine.controllers.controller import Controller
from rerail.engine.desk import Desk
from rerail.engine.frame import Frame
from rerail.engine.launch import attempt_of
from rerail.engine.progress import save_cost
from rerail.engine.ready_queue import Task
from rerail.engine.spec import unit_name
from rerail.ports import Outcome

INLINE_BYTES = 64 * 1024  # of results, as an output; larger ones are in a file only
LIST_BYTES = 64 * 1024 * 1024  # of what a command prints
SHOWN_FAILURES = 3


class MapController(Controller):
    """One map on its way through one life of a run."""

    counted = False  # its items have a width of their own
    status = ""

    def __init__(self, desk: Desk, task: Task) -> None:
        super().__init__(desk, task)
        assert isinstance(task.step.action, Map)
        self.action: Map = task.step.action
        self.item = task.unit[1]
        self._width = self.action.parallel or desk.job.options.parallel
        self._listing = ItemList(keys=[], values=None, digest="")
        self._former: ItemList | None = None  # a recorded list that the output of its command replaces
        self._items = Items(marks=bytearray())
        self._cursor = 0
        self._since = (0, 0)  # where in the journal its items begin
        self._active = 0
        self._asked = 0  # items that wait for a person: they keep the map open, and no other item waiting
        self._stopped = ""  # the item after whose failure no further one starts
        self._body = desk.body(task)

    @property
    def counts_inside(self) -> bool:
        return False

    # The list

    def begin(self) -> None:
        with contextlib.suppress(ItemListStopped):  # it stays under way, and is interrupted with all that is
            self._begin()

    def _begin(self) -> None:
        known = self.state.unit(self.unit).items
        if known is not None and known.known == known.total:
            recorded = lists.recorded(self.desk.recorder.find(lists.TAGS, self.step.id), self.unit)
            if recorded is not None and recorded.digest == known.digest:
                if self._has_another_command(recorded):
                    self._former = recorded  # `took` goes on
                    self._run_command()
                else:
                    self._go_on(recorded, known)
                return
            self.begin_anew("its list was lost with damaged records")
        if self.action.over.kind == "command":
            self._run_command()
            return
        scope = self.desk.view.of(self.task)
        try:
            raw = self.desk.tools.source(self.action.over, scope)
            self._take_list(lists.listing(raw, self.action, scope))
        except ItemListError as error:
            self._refuse(str(error))

    def _refuse(self, why: str) -> None:
        self.end("failed", type="ItemsInvalid", message=why, retryable=False)

    def _run_command(self) -> None:
        """Have the command run whose output is the list; `took` goes on."""
        number = self.state.unit(self.unit).attempts
        scope = self.desk.view.of(self.task)
        try:
            attempt = attempt_of(self.desk.job, self.task, self.state, number, self.desk.view)
            script, values = shell(self.action.over.value, scope, mentioned(attempt.env, self.action.over.value))
            attempt = msgspec.structs.replace(
                attempt,
                action=Run(script=script),
                values=values,
                capture={"items": self.action.over.form},
                most_captured=LIST_BYTES,
            )
            work = self.desk.tools.kinds[Run].work(attempt)
        except ExpressionError as error:
            self._refuse(f"`over`: {error}")
            return
        self.desk.started.append(self.task)
        self.desk.tools.executor.start(attempt, work)

    def took(self, outcome: Outcome) -> None:
        """What the command came to whose output is the list."""
        if outcome.status != "ok":
            message = f"`over`: {outcome.message}" if outcome.message else ""
            self.desk.ends.append((self.task, msgspec.structs.replace(outcome, message=message)))
            return
        self._count(outcome)
        raw = outcome.outputs["items"]
        if self.action.over.form == "lines":
            raw = [line for line in (text.removesuffix("\r") for text in raw) if line]
        try:
            new = lists.listing(raw, self.action, self.desk.view.of(self.task))
        except ItemListError as error:
            self._refuse(str(error))
            return
        known = self.state.unit(self.unit).items
        if self._former is None or known is None:
            self._take_list(new)
        elif self._holds_no_secret(new):
            self._replace(self._former, known, new)
            self._start(new)

    def _count(self, outcome: Outcome) -> None:
        """The command may have cost something: that counts at once, and is recorded with the end of the map."""
        for warning in outcome.warnings:
            self.desk.recorder.warn(f"{name(self.unit)}: {warning}")
        if outcome.metrics:
            self.used = Usage(metrics=outcome.metrics, models=outcome.models)
            self.desk.spending.append(self.unit)
            save_cost(self.desk, self.task, self.state.unit(self.unit).attempts, outcome)

    def _take_list(self, new: ItemList) -> None:
        if self._holds_no_secret(new):
            self._since = self.desk.recorder.position  # nothing before it is about these items
            self._record(new, None)
            self._start(new)

    def _holds_no_secret(self, new: ItemList) -> bool:
        """Whether a list may be recorded; if not, the map is at its end."""
        mask = self.desk.job.mask
        for at, key in enumerate(new.keys) if mask else ():
            item = [key, new.value(at)]
            if mask.value(item) != item:
                self._refuse(f"item {at + 1} holds a secret; items are recorded, and secrets never are")
                return False
        return True

    def _record(self, new: ItemList, kept: lists.ListDiff | None) -> None:
        new.source = self._source
        remembered = [key[len(self._prefix) :] for key in self.state.inner] if kept is not None else ()
        for event in lists.records(self.unit, new, self.desk.clock.now(), kept, remembered):
            self.desk.recorder.stage(event)

    @property
    def _prefix(self) -> str:
        return "" if self.item is None else f"{self.item}::"

    def _go_on(self, recorded: ItemList, known: Items) -> None:
        """The list of an earlier life, or what it has become since."""
        changed = self._listed_anew()
        if changed is not None and changed.digest != recorded.digest:
            if not self._holds_no_secret(changed):
                return
            self._replace(recorded, known, changed)
            recorded = changed
        self._start(recorded)

    def _replace(self, recorded: ItemList, known: Items, changed: ItemList) -> None:
        """Record another list in the place of one that is recorded; what is the same in both is kept."""
        kept = lists.diff(recorded, known.marks, changed)
        if changed.digest != recorded.digest:
            self.desk.recorder.warn(f"{name(self.unit)}: {kept.words}")
        self._record(changed, kept)

    def _has_another_command(self, recorded: ItemList) -> bool:
        """Whether the command whose output is the list was edited since: what it says now only running it can tell."""
        return self.desk.job.changes != "keep" and recorded.source not in ("", self._source)

    @property
    def _source(self) -> str:
        return self.desk.definition(self.step).partition(".")[2] if self.action.over.kind == "command" else ""

    def _listed_anew(self) -> ItemList | None:
        """What the source holds now; None if that is not asked for, or cannot be told without running something."""
        if self.desk.job.changes == "keep" or self.action.over.kind == "command":
            return None
        scope = self.desk.view.of(self.task)
        try:
            return lists.listing(self.desk.tools.source(self.action.over, scope), self.action, scope)
        except ItemListError as error:
            self.desk.recorder.warn(f"{name(self.unit)}: {error}; it goes on with the list that is recorded")
            return None

    def _start(self, listing: ItemList) -> None:
        items = self.state.unit(self.unit).items
        assert items is not None
        self._listing, self._items = listing, items
        if self.action.on_item_failure == "stop" and items.failed:  # in a life that was cut off before the map ended
            self._stopped = f"an item of {name(self.unit)}"
        if not listing.keys:
            self.desk.recorder.warn(f"{name(self.unit)}: there are no items")
        self._fill()

    # Items

    def _fill(self) -> None:
        """Open items while there is room; come to an end when there are none left."""
        while self._active < self._width and not self.desk.stopping and not self._stopped:
            index = self._items.next_pending(self._cursor)
            if index < 0:
                break
            self._cursor = index + 1
            self._active += 1
            self._open_item(index)
        left = -1 if self._stopped else self._items.next_pending(self._cursor)
        if self._active == 0 and left < 0:
            if self._asked and not self._stopped:  # all that is left of it waits for something outside
                self.outer.set_aside(self.task)
            elif self not in self.desk.due:
                self.desk.due.append(self)

    def _open_item(self, index: int) -> None:
        item = self._prefix + self._listing.keys[index]
        if not self.action.single:
            self.open_group(index, item, {"item": self._listing.value(index)})
            return
        step = self._body.steps[0]
        task = Task(step, (step.id, item), self, index)
        known = self.state.unit(task.unit)
        wait = None if known.status == "pending" else self.desk.past.left_to_wait(known)
        if known.status == "interrupted" and not step.idempotent:
            self.desk.turns.asked.append(name(task.unit))
            self._active -= 1
            self._asked += 1
        elif wait is not None:
            self.desk.turns.wait(task, self.desk.clock.monotonic() + wait)
        else:
            self.desk.turns.ready(task)

    # As the home of items that are one step

    def names(self, task: Task) -> Mapping[str, Any]:
        assert task.index is not None
        return {**self.outer.values, "item": self._listing.value(task.index)}

    def lookup(self, name: str, state: RunState) -> Unit:
        return self.outer.lookup(name, state)

    def outdated(self, task: Task, unit: UnitState, state: RunState) -> str | None:  # noqa: ARG002 - the home's signature
        return None

    def required(self, task: Task) -> str:  # noqa: ARG002 - the home's signature
        return ""

    def allows_failure(self, task: Task) -> bool:
        return task.step.allow_failure or self.action.on_item_failure == "skip"

    def settle(self, task: Task, unit: UnitState) -> None:
        """Nothing waits for an item but the map."""

    def fail(self, task: Task, *, allowed: bool) -> list[Task]:
        if not allowed and self.action.on_item_failure == "stop":
            self._stopped = self._stopped or name(task.unit)
        return []

    def leave(self, task: Task) -> None:
        assert task.index is not None
        self._left(task.index)

    def _left(self, index: int) -> None:
        if self._listing.values is not None:
            self._listing.values[index] = None  # nobody asks for it again in this life
        self._active -= 1
        self._fill()

    def set_aside(self, task: Task) -> None:  # noqa: ARG002 - whichever it is
        self._active -= 1
        self._asked += 1
        self._fill()

    def take_back(self, task: Task) -> None:  # noqa: ARG002 - whichever it is
        if not self._active:
            self.outer.take_back(self.task)
        self._active += 1
        self._asked -= 1

    # As the owner of items of several steps

    def frame_over(self, frame: Frame) -> None:
        unit: Unit = (self.step.id, frame.item)
        index = self.state.unit(unit).index
        assert index is not None
        if frame.failed or not frame.complete:
            allowed = self.action.on_item_failure == "skip"
            self.close_group(frame, None, allowed=allowed)
            if not allowed and self.action.on_item_failure == "stop":
                self._stopped = self._stopped or name(unit)
        else:
            self.close_group(frame, self.handed_out(frame))
        self._left(index)

    def frame_blocked(self, frame: Frame) -> None:  # noqa: ARG002 - which of its items it is makes no difference
        self.set_aside(self.task)

    def frame_unblocked(self, frame: Frame) -> None:  # noqa: ARG002 - likewise
        self.take_back(self.task)

    # The end

    def conclude(self) -> None:
        """The last item is durable: hand out what all of them did."""
        if self.desk.stopping:
            return
        items, action = self._items, self.action
        if self.desk.recorder.lost is not None:  # `checkpoint.on_error: warn`
            self.end("failed", type="ResultsLost", message="its results could not be recorded", retryable=False)
            return
        if self._stopped:
            self.end("failed", type="ItemFailed", message=f"stopped after {self._stopped} failed", retryable=False)
            return
        if items.next_pending(0) >= 0:  # somebody took back that one failed, while others ran
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
            if not self.desk.cannot_keep(f"{name(self.unit)}: {why}"):
                self.end("failed", type="ResultsUnwritable", message=why)
            return
        self.end("ok", outputs=outputs)

    def _run_again(self, indexes: list[int]) -> None:
        """Items that count as completed, and whose records a repair had to give up."""
        self.desk.recorder.warn(
            f"{name(self.unit)}: the records of {len(indexes)} completed items are lost: they run again"
        )
        for index in indexes:
            item = self._prefix + self._listing.keys[index]
            self.desk.past.invalidate((self.step.id, item), "its record was lost", index=index)
        self._cursor = 0
        self._fill()

    def _fail(self, items: Items, allowed: int) -> None:
        dead = [
            (unit, known.error.message.splitlines()[0] if known.error and known.error.message else "failed")
            for unit, known in self.state.units.items()
            if unit[0] == self.step.id and known.index is not None and known.status == "failed" and not known.allowed
            if unit[1] is not None and parent_of(unit[1]) == self.item
        ]
        told = "; ".join(f"{unit[1]}: {message}" for unit, message in dead[:SHOWN_FAILURES])
        more = f" and {len(dead) - SHOWN_FAILURES} more" if len(dead) > SHOWN_FAILURES else ""
        few = f"{allowed} may" if allowed else "none may"
        message = f"{items.failed} of {items.total} items failed, {few}: {told}{more}"
        self.end("failed", type="ItemsFailed", message=message)

    def _results(self, items: Items) -> dict[str, Any]:
        """What the map hands out: counts, and what its items handed out, in the order of the list."""
        outputs: dict[str, Any] = {
            "total": items.total,
            "completed": items.completed,
            "failed": items.failed,
            "skipped": items.skipped,
        }
        events = self.desk.recorder.find(results.TAGS, self.step.id, self._since)
        lines = results.result_lines(events, self.unit, self._listing.keys, items)
        path = self.desk.recorder.save_results(unit_name(self.unit), lines)
        if path:
            outputs["results_file"] = os.path.relpath(path, self.desk.job.work_dir)
            outputs["results_sha256"] = results.digest_of(lines)
        if sum(map(len, lines)) <= INLINE_BYTES or not path:
            outputs["results"] = [msgspec.json.decode(line) for line in lines]
        else:
            self.desk.recorder.warn(
                f"{name(self.unit)}: its results are large; they are in {outputs['results_file']} only"
            )
        return outputs
