"""What must come of an invocation, worked out from the documentation alone.

The steps are functions of their definition and of what they see, so the end of a run that nobody strikes is that of a run
which was never struck: that is computed here, together with what has to run (`must`), what may run because the documentation
leaves it open (`may`), and by that, what must not. Where the documentation is silent the result is `unknown`, and nothing is
judged that depends on it. This module imports nothing of rerail.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from tests.fuzz.generator import NEVER, Behaviour, Case, Step, artifact_of, is_folded, paths, written_by

Unit = tuple[str, str]  # path, scope

DONE, FAILED, ALLOWED, SKIPPED, BLOCKED, WAITING, DOUBT, UNKNOWN = (
    "done failed allowed skipped blocked waiting doubt unknown".split()
)
FINE = {DONE, ALLOWED, SKIPPED}
NO, MAYBE, YES = 0, 1, 2
SETTLED = "settled"


@dataclass
class Record:
    """What is known of a unit from earlier invocations."""

    status: str = "pending"  # pending running interrupted completed failed skipped
    saw: str = ""  # digest of the definition and of what it saw when it ran
    definition: str = field(default="", repr=False)
    hands: dict[str, object] = field(default_factory=dict)
    failures: int = 0  # in the present series of attempts
    cut: bool = False  # an attempt of the present series was cut off
    anew: bool = False  # a person said that it is to run again
    loose: bool = False  # whether it counts is open: a repair, a word of a person, `--changes keep`


@dataclass
class Options:
    """Of one invocation."""

    from_step: str = ""
    until: str = ""
    fail_fast: bool = False
    parallel: int = 2
    keep: bool = False
    no_restore: bool = False
    budget: int = 0  # cents
    fast: bool = False
    new: bool = False  # `run`, not `resume`


@dataclass
class Result:
    """How a step comes out."""

    end: str
    word: str = "-"  # what those see that need it
    value: str | None = None  # v, if it hands one out: an inner pipeline always does, if only an empty text
    churn: int = NO  # whether it, or what it depends on, came out different


@dataclass
class Prediction:
    must: set[Unit] = field(default_factory=set)
    may: set[Unit] = field(default_factory=set)
    results: dict[str, Result] = field(default_factory=dict)  # of the steps on top
    outputs: dict[str, dict[str, object]] = field(default_factory=dict)  # of those that complete
    artifacts: dict[str, str] = field(default_factory=dict)  # content by path, of what is complete
    open: bool = False  # which of the steps run is open
    ends: set[tuple[str, int]] = field(default_factory=set)  # status and exit code
    expected: dict[Unit, str] = field(default_factory=dict)  # the digest a unit would have if it ran now
    definitions: dict[Unit, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)  # content by path, of `write` steps


def digest(token: int, scope: str, words: str) -> str:
    return hashlib.md5(f"{token}|{scope}|{words}".encode()).hexdigest()


def value_of(saw: str) -> str:
    return "h" + saw[:8]


def number_of(saw: str) -> int:
    return int(saw[:2], 16) % 10


def script_of(definition: str) -> tuple[str, ...]:
    """The parts of a definition whose change makes a step run again, for sure."""
    parts = definition.split("), (")
    return tuple(part for part in parts if part.startswith(("'note'", "'token'", "'reads'", "'artifact'", "'outputs'")))


class Model:
    """The records of one run, and what comes of its next invocation."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.records: dict[Unit, Record] = {}
        self.answers: dict[str, str] = {}  # approve steps: approved, rejected
        self.fails: dict[Unit, int] = {}  # failures so far, of behaviours that fail a number of times
        self.broken: dict[str, bool] = {}  # artifacts that are not what they were: can be restored or not
        self.sources: dict[str, str] = {}  # content of src files
        self.lists: dict[Unit, list[str]] = {}  # keys that were recorded for a map
        self.dropped: set[Unit] = set()  # items that were given up
        self.spent: int = 0
        self.is_fork = False
        self.loose = False  # after a repair: what counts as done is what could be proved

    def predict(self, options: Options) -> Prediction:
        self.options = options
        self.now = Prediction()
        self.forced = self._closure(options.from_step) if options.from_step else set()
        self.now.results = self._body(self.case.steps, "", "", [], "open", NO)
        self._end()
        return self.now

    # The run ----------------------------------------------------------------------------------------------------------

    def _closure(self, first: str) -> set[str]:
        """A step and what depends on it."""
        found = {first}
        for step in self.case.steps:
            if found & set(step.needs):
                found.add(step.id)
        return found

    def ancestors(self, last: str) -> set[str]:
        found = {last}
        for step in reversed(self.case.steps):
            if step.id in found:
                found |= set(step.needs)
        return found

    def _end(self) -> None:
        now, options = self.now, self.options
        ends = {result.end for result in now.results.values()}
        budget = options.budget or self.case.budget
        costs = sum(self._behaviour(path).cost * 3 for path, _ in now.must | now.may)
        if options.fail_fast and ends & {FAILED, UNKNOWN}:
            now.open = True
            now.ends = {("failed", 1)} if FAILED in ends else {("failed", 1), ("paused", 5), ("completed", 0)}
        elif UNKNOWN in ends:
            now.ends = {("failed", 1), ("paused", 5), ("completed", 0)}
            if FAILED in ends:
                now.ends = {("failed", 1)}
        elif FAILED in ends:
            now.ends = {("failed", 1)}
        elif ends & {WAITING, DOUBT}:
            now.ends = {("paused", 5)}
        else:
            now.ends = {("completed", 0)}
        if options.until:
            inside = self.ancestors(options.until)
            now.open = True
            before = {now.results[one].end for one in inside}
            now.ends |= {("paused", 0), ("failed", 1), ("paused", 5)}
            if before <= FINE:
                now.ends -= {("paused", 5)} if not ends & {WAITING, DOUBT, UNKNOWN} else set()
        if budget and self.spent + costs >= budget:
            now.open = True
            now.ends |= {("paused", 5)}
            if self.spent >= budget:
                now.ends |= {("failed", 1)}  # what failed earlier, and is not tried again
        if now.open:
            now.may |= now.must
            now.must = set()

    def _behaviour(self, path: str) -> Behaviour:
        return self.case.world.get(path) or Behaviour()

    # Steps ------------------------------------------------------------------------------------------------------------

    def _body(
        self, steps: list[Step], prefix: str, scope: str, outer: list[str], mode: str, churn: int
    ) -> dict[str, Result]:
        results: dict[str, Result] = {}
        for index, step in enumerate(steps):
            needs = [results[one] for one in step.needs]
            words = [*(outer if index == 0 else []), *[one.word for one in needs]]
            moved = max([churn, *[one.churn for one in needs]])
            path = prefix + step.id
            inner = mode
            if not prefix and step.id in self.forced:
                inner = "anew"
            ends = {one.end for one in needs}
            if not prefix and self.options.new and self.forced and step.id not in self.forced:
                results[step.id] = Result(SKIPPED)  # before --from
            elif ends & {FAILED, BLOCKED, WAITING, DOUBT}:
                results[step.id] = Result(BLOCKED, churn=max(moved, MAYBE))
            elif UNKNOWN in ends:
                results[step.id] = self._unknown(step, path, scope)
            else:
                results[step.id] = self._step(step, path, scope, words, inner, moved)
            if step.kind == "map" and results[step.id].end != DONE:
                results[step.id].word = ""  # no results: an empty list, joined
        return results

    def _unknown(self, step: Step, path: str, scope: str) -> Result:
        """Everything of it may run, and nothing is known of how it ends."""
        self._all_may(step, path, scope)
        return Result(UNKNOWN, churn=YES)

    def _all_may(self, step: Step, path: str, scope: str) -> None:
        for unit in self.units(step, path, scope):
            self.now.must.discard(unit)
            self.now.may.add(unit)
            self.now.artifacts.pop(artifact_of(*unit), None)

    def units(self, step: Step, path: str, scope: str) -> list[Unit]:
        """All that could run of it."""
        if step.kind == "run":
            return [(path, scope)]
        if step.kind in {"approve", "write"}:
            return []
        found: list[Unit] = []
        for inner in self._scopes(step, path, scope):
            if is_folded(step):
                found.append((path, inner))
            else:
                for one in step.body:
                    found += self.units(one, f"{path}/{one.id}", inner)
        return found

    def _scopes(self, step: Step, path: str, scope: str) -> list[str]:
        if step.kind == "map":
            own = [f"{scope}.{one}" if "/" in path else one for one in step.items]
            return [*own, *[one for one in self.lists.get((path, scope), []) if one not in own]]
        if step.kind == "loop":
            return [f"{scope}#{number}" for number in range(1, max(step.iterations, 3) + 1)]
        return [scope]

    def _step(self, step: Step, path: str, scope: str, words: list[str], mode: str, churn: int) -> Result:
        record = self.records.get((path, scope))
        holds = True
        if step.when == NEVER:
            holds = False
        elif step.when:
            number = self._number(path, step.when, scope)
            if number is None:
                return self._unknown(step, path, scope)
            holds = number % 2 == 0
        if not holds:
            if (
                record is not None
                and record.status == "completed"
                and mode != "anew"
                and not self._edited(step, path, scope, record)
            ):
                return self._unknown(step, path, scope) if churn or record.loose else Result(SKIPPED, churn=churn)
            was = record is not None and record.status not in {"skipped", "pending"}
            return Result(SKIPPED, churn=YES if was else churn)
        if step.kind == "run":
            return self._plain(step, path, scope, words, mode, churn)
        if step.kind == "approve":
            return self._approve(step, path, mode, churn)
        if step.kind == "write" and record is not None and record.status == "skipped" and not step.when:
            return Result(UNKNOWN, churn=YES)  # by `run --from`: what a later resume makes of it is not documented
        if step.kind == "write":
            self.now.written[written_by(step)] = " ".join([str(step.token), *words]) + "\n"
            same = (
                record is not None
                and record.status == "completed"
                and not churn
                and not self._edited(step, path, scope, record)
            )
            return Result(DONE, churn=churn if same else max(churn, MAYBE))
        return self._controller(step, path, scope, words, mode, churn)

    def _number(self, path: str, need: str, scope: str) -> int | None:
        """The number of a neighbour that is done by now."""
        neighbour = (path[: path.rfind("/") + 1] + need, scope)
        saw = self.now.expected.get(neighbour)
        record = self.records.get(neighbour)
        if saw is None or (neighbour in self.now.may and record is not None and record.hands.get("n") != number_of(saw)):
            return None
        if neighbour not in self.now.must and record is not None:
            number = record.hands.get("n", 0)
            return number if isinstance(number, int) else None
        return number_of(saw)

    def _edited(self, step: Step, path: str, scope: str, record: Record) -> int:
        """Whether its definition is not what it was when it ran: for sure, perhaps, or not."""
        if not record.definition or record.definition == step.definition():
            return NO
        return YES if script_of(record.definition) != script_of(step.definition()) else MAYBE

    def _approve(self, step: Step, path: str, mode: str, churn: int) -> Result:
        answer = self.answers.get(path)
        record = self.records.get((path, ""))
        if record is not None and record.status == "completed" and (churn or mode == "anew" or record.loose):
            return Result(UNKNOWN, churn=YES)
        if record is not None and (record.loose or (record.status == "failed" and step.allow_failure)):
            return Result(UNKNOWN, churn=YES)
        if answer == "unsure" or (record is not None and record.status == "skipped"):
            return Result(UNKNOWN, churn=YES)
        if answer is not None and churn and (record is None or record.status != "failed"):
            return Result(UNKNOWN, churn=YES)  # what was asked about may have changed since
        if answer == "approved":
            return Result(DONE, "true", churn=churn)
        if answer == "rejected":
            return Result(ALLOWED, "false") if step.allow_failure else Result(FAILED)
        return Result(WAITING)

    def _plain(self, step: Step, path: str, scope: str, words: list[str], mode: str, churn: int) -> Result:
        unit = (path, scope)
        if step.reads == "src":
            words = [self.sources.get(step.id, "")]
        elif step.reads:
            words = [value_of(self.now.expected.get((path[: path.rfind("/") + 1] + step.reads, scope), ""))]
            record = self.records.get((path[: path.rfind("/") + 1] + step.reads, scope))
            if (
                (path[: path.rfind("/") + 1] + step.reads, scope) not in self.now.must
                and record is not None
                and record.saw
            ):
                words = [value_of(record.saw)]
        saw = digest(step.token, scope, " ".join(words))
        record = self.records.get(unit)
        self.now.expected[unit] = saw
        self.now.definitions[unit] = step.definition()
        verdict = self._verdict(step, unit, record, saw, mode, churn)
        if verdict == DOUBT:
            return Result(DOUBT)
        if verdict == UNKNOWN:
            self.now.may.add(unit)
            return Result(UNKNOWN, churn=YES)
        if verdict == SETTLED:
            return Result(BLOCKED, churn=churn)  # it never began, and what it is part of is over
        if verdict == NO and record is not None:
            return self._kept(step, path, scope, record, churn)
        (self.now.must if verdict == YES else self.now.may).add(unit)
        end = self._outcome(step, unit, record)
        if verdict == MAYBE and record is not None:
            kept = self._kept(step, path, scope, record, churn)
            same = record.saw == saw and record.status == "completed" and end == DONE
            same = same or (record.status == "failed" and end == FAILED)
            if not same:
                self.now.artifacts.pop(artifact_of(path, scope), None)
                return Result(UNKNOWN, churn=YES)
            return Result(kept.end, kept.word, kept.value, max(churn, MAYBE if not self._compared(step) else NO))
        if verdict == MAYBE or end == UNKNOWN:
            return Result(UNKNOWN, churn=YES)
        if end == FAILED:
            return Result(ALLOWED if step.allow_failure else FAILED, churn=YES)
        value = value_of(saw) if step.outputs else None
        if step.artifact:
            self.now.artifacts[artifact_of(path, scope)] = value_of(saw) + "\n"
        came = churn
        if record is None or record.status != "completed" or record.saw != saw:
            came = YES
        elif not self._compared(step):
            came = max(came, MAYBE)
        return Result(DONE, value or "-", value, came)

    @staticmethod
    def _compared(step: Step) -> bool:
        return step.outputs or bool(step.artifact)

    def _verdict(self, step: Step, unit: Unit, record: Record | None, saw: str, mode: str, churn: int) -> int | str:
        if mode == "settled" and (record is None or record.status == "pending") and not self.loose:
            return SETTLED
        if record is None or record.status == "pending":
            return YES if record is None or not record.loose else MAYBE
        if record.status in {"running", "interrupted"}:
            return YES if step.idempotent else DOUBT
        if record.loose or self.loose:
            return MAYBE if step.idempotent else UNKNOWN  # what a repair could not prove of it is asked about
        flaw = self.broken.get(artifact_of(*unit)) if step.artifact and record.status == "completed" else None
        lost = flaw is not None and (not flaw or self.options.no_restore)
        if mode == "anew" or record.anew:
            return YES if step.idempotent or not lost else UNKNOWN  # whether --from asks then is not documented
        if mode == "lenient" and record.status != "completed":
            return MAYBE
        if mode == "cut" and record.status == "failed":
            return MAYBE  # it failed, and what it is part of was cut off before that was recorded
        edited = self._edited(step, *unit, record)
        if record.status == "failed":
            if mode == "settled":
                return NO
            if step.allow_failure:
                return YES if edited == YES and not self.options.keep else MAYBE if edited or churn else NO
            return YES
        if record.status == "skipped" and not step.when:
            return MAYBE  # by `run --from`: what a later resume makes of it is not documented
        if record.status == "skipped":
            return YES if edited or churn or mode == "lenient" else MAYBE
        if lost and not step.idempotent:
            if edited and not self.options.keep:
                return edited if edited == YES else UNKNOWN  # it runs again for that, not for what is lost
            return UNKNOWN if record.saw != saw or churn else DOUBT
        if lost:
            return YES
        if edited:
            return NO if self.options.keep else edited
        if record.saw != saw:
            return YES
        named = not step.reads or bool(step.when)  # with inputs, only those count that its expressions name
        return MAYBE if (churn and named) or mode == "lenient" else NO

    def _kept(self, step: Step, path: str, scope: str, record: Record, churn: int) -> Result:
        if record.status == "failed":
            return Result(ALLOWED if step.allow_failure else FAILED, churn=churn)
        if record.status == "skipped":
            return Result(SKIPPED, churn=churn)
        if step.artifact and record.saw:
            self.now.artifacts[artifact_of(path, scope)] = value_of(record.saw) + "\n"
        value = str(record.hands["v"]) if "v" in record.hands else None
        return Result(DONE, value or "-", value, churn)

    def _outcome(self, step: Step, unit: Unit, record: Record | None) -> str:
        path, scope = unit
        behaviour = self._behaviour(path)
        if behaviour.hang or (step.checks and behaviour.unchecked) or "*" in behaviour.down or scope in behaviour.down:
            return FAILED
        if not behaviour.first:
            return DONE
        left = behaviour.first - self.fails.get(unit, 0)
        if left <= 0:
            return DONE
        attempts = step.retry - (record.failures if record is not None else 0)
        if record is not None and (record.cut or record.failures) and step.retry > 1:
            return UNKNOWN  # whether an attempt that was cut off uses up one of them is not documented
        return DONE if left < attempts else FAILED

    # Controllers ------------------------------------------------------------------------------------------------------

    def _controller(self, step: Step, path: str, scope: str, words: list[str], mode: str, churn: int) -> Result:
        unit = (path, scope)
        record = self.records.get(unit)
        self.now.definitions[unit] = step.definition()
        edited = NO if record is None else self._edited_inside(step, record)
        inner = mode
        if mode == "anew" or (record is not None and record.anew):
            inner = "anew"
        elif (record is not None and (record.loose or self.loose)) or (edited and self.options.keep):
            return self._unknown(step, path, scope)
        elif record is not None and record.status == "skipped" and not step.when:
            return self._unknown(step, path, scope)  # by `run --from`: what a later resume makes of it is not documented
        elif record is not None and record.status != "pending" and (edited or churn or mode == "lenient"):
            inner = "lenient"  # what it is in may begin anew, and this with it
        elif record is not None and record.status == "completed":
            inner = "settled"
        elif record is not None and record.status == "skipped":
            return self._unknown(step, path, scope)
        elif mode in {"settled", "lenient", "cut"}:
            inner = mode
        elif record is not None and record.status == "failed" and step.allow_failure:
            inner = "settled"
        elif record is not None and record.status in {"running", "interrupted"}:
            inner = "cut"
        else:
            inner = "open"
        if step.kind == "loop" and inner == "lenient" and record is not None and record.status == "completed":
            return self._unknown(step, path, scope)  # whether one that is complete goes on for more rounds
        in_doubt = self._in_doubt_inside(step, path)
        if inner in {"lenient", "anew"}:
            in_doubt |= {unit for unit, one in self._lost_inside(step, path).items() if not one.idempotent}
        if in_doubt and (inner in {"lenient", "anew"} or self._needs_run(step, path)):
            # It may begin anew, which would forget what is in doubt: a person is asked first.
            result = self._unknown(step, path, scope)
            if record is None or not record.anew:
                self.now.may -= in_doubt
            return result
        lost = self._lost_inside(step, path) if inner in {"settled", "open", "cut"} else {}
        if not all(one.idempotent for one in lost.values()):
            if inner == "settled":
                return Result(DOUBT)
            result = self._unknown(step, path, scope)  # a person is asked before any of it goes on
            self.now.may -= {unit for unit, one in lost.items() if not one.idempotent}
            return result
        if lost and (step.kind == "loop" or (inner == "settled" and self.is_fork)):
            return self._unknown(step, path, scope)  # a loop begins anew, and so does what a fork shares
        before = len(self.now.must), len(self.now.may)
        if inner == "settled" and record is not None and record.status in {"completed", "failed"}:
            rest = self._settled(step, path, scope, words, churn, record)
            if before == (len(self.now.must), len(self.now.may)):
                return rest
        if step.kind == "map":
            result = self._map(step, path, scope, words, inner, churn, record)
        elif step.kind == "loop":
            result = self._loop(step, path, scope, words, inner, churn)
        else:
            result = self._pipeline(step, path, scope, words, inner, churn)
        if result.end == FAILED and step.allow_failure:
            return Result(ALLOWED, churn=YES)
        if inner == "anew":
            result.churn = max(result.churn, MAYBE)  # there is nothing left to compare what it produces with
        return result

    def _inside(self, step: Step, path: str) -> list[tuple[Unit, Step]]:
        """The units inside it of which something is known, and their steps."""
        known = paths(self.case.steps)
        found = [(unit, known[unit[0]]) for unit in self.records if unit[0].startswith(path + "/") and unit[0] in known]
        if is_folded(step):
            found += [(unit, step.body[0]) for unit in self.records if unit[0] == path and unit[1]]
        return found

    def _lost_inside(self, step: Step, path: str) -> dict[Unit, Step]:
        """The complete units inside it of which an artifact is gone, and cannot be restored."""
        found = {}
        for unit, one in self._inside(step, path):
            flaw = self.broken.get(artifact_of(*unit)) if self.records[unit].status == "completed" else None
            if flaw is not None and (not flaw or self.options.no_restore):
                found[unit] = one
        return found

    def _in_doubt_inside(self, step: Step, path: str) -> set[Unit]:
        """What was cut off inside it, and must not be repeated."""
        return {
            unit
            for unit, one in self._inside(step, path)
            if one.kind == "run" and not one.idempotent and self.records[unit].status in {"running", "interrupted"}
        }

    def _needs_run(self, step: Step, path: str) -> bool:
        above = [path[: path.rfind("/") + 1] + need for need in step.needs]
        ran = self.now.must | self.now.may
        return any(unit[0] == one or unit[0].startswith(one + "/") for unit in ran for one in above)

    def _settled(self, step: Step, path: str, scope: str, words: list[str], churn: int, record: Record) -> Result:
        """One that is over, and stays so unless something inside it has to run."""
        saved = self.now.outputs
        self.now.outputs = {}
        if step.kind == "map":
            self._map(step, path, scope, words, "settled", churn, record)
        elif step.kind == "loop":
            self._loop(step, path, scope, words, "settled", churn)
        else:
            self._pipeline(step, path, scope, words, "settled", churn)
        found, self.now.outputs = self.now.outputs, saved
        if record.status == "failed":
            return Result(ALLOWED if step.allow_failure else FAILED, churn=churn)
        if step.kind == "map":
            results = record.hands.get("results")
            values = [str(one["outputs"].get("v", "")) for one in results] if isinstance(results, list) else []
            saved |= found
            return Result(DONE, ",".join(values), churn=churn)
        saved |= found
        value = str(record.hands["v"]) if "v" in record.hands else None
        return Result(DONE, "-" if value is None else value, value, churn)

    @staticmethod
    def _edited_inside(step: Step, record: Record) -> int:
        return NO if not record.definition or record.definition == step.definition() else MAYBE

    def _merge(self, step: Step, results: dict[str, Result]) -> tuple[str, str | None]:
        """How an item, iteration or inner pipeline ends, and the value it hands out: the later over the earlier."""
        ends = {one.end for one in results.values()}
        value = None
        for one in results.values():
            if one.end == DONE and one.value is not None:
                value = one.value
        if FAILED in ends and ends & {DOUBT, WAITING}:
            return UNKNOWN, value  # whether it has failed before the question is answered is not documented
        for end in (UNKNOWN, FAILED, DOUBT, WAITING, BLOCKED):
            if end in ends:
                return end, value
        return DONE, value

    def _map(
        self, step: Step, path: str, scope: str, words: list[str], mode: str, churn: int, record: Record | None
    ) -> Result:
        keys = [f"{scope}.{one}" if "/" in path else one for one in step.items]
        listed = self.lists.get((path, scope))
        if listed is not None and listed != keys and mode != "anew":
            if (
                record is not None
                and record.status == "completed"
                and mode == "settled"
                and step.over in {"lines", "json"}
            ):
                keys = listed  # a map that is complete stays so
            elif record is not None and record.status == "completed":
                return self._unknown(step, path, scope)
        ends: list[tuple[str, str, str | None]] = []
        moved = churn
        for key in keys:
            if (path, key) in self.dropped and mode != "anew":
                if mode in {"settled", "open", "cut"}:
                    ends.append((key, "dropped", None))
                    continue
                self.now.may.update(  # it begins anew, perhaps, and then with all of its items
                    [(path, key)]
                    if is_folded(step)
                    else [unit for one in step.body for unit in self.units(one, f"{path}/{one.id}", key)]
                )
                ends.append((key, UNKNOWN, None))
                continue
            item = self.records.get((f"{path}[]", key))
            inner = mode
            if mode in {"open", "cut"} and item is not None and item.status in {"completed", "skipped"}:
                inner = "settled"
            if mode == "settled" and item is not None and item.status == "failed":
                lost = [unit for unit in self._lost_inside(step, path) if unit[1].startswith(key)]
                inner = "open" if lost else mode  # it goes on for that, and tries again what failed in it
            if is_folded(step):
                results = {step.body[0].id: self._step(step.body[0], path, key, words, inner, churn)}
            else:
                results = self._body(step.body, path + "/", key, words, inner, churn)
            end, value = self._merge(step, results)
            if mode in {"settled"} and end == FAILED and item is not None and item.status == "skipped":
                end = "dropped"
            moved = max([moved, *[one.churn for one in results.values()]])
            ends.append((key, end, value))
        return self._close_map(step, path, scope, ends, moved)

    def _close_map(
        self, step: Step, path: str, scope: str, ends: list[tuple[str, str, str | None]], churn: int
    ) -> Result:
        kinds = [end for _, end, _ in ends]
        failed = kinds.count(FAILED)
        skipped = kinds.count("dropped")
        if UNKNOWN in kinds:
            return Result(UNKNOWN, churn=YES)
        if failed and step.on_item_failure == "skip":
            skipped, failed = skipped + failed, 0
        if failed and (step.on_item_failure == "stop" or failed > step.max_failures > 0):
            self._all_may(step, path, scope)  # no further item starts, or all have run: the pages differ
        if DOUBT in kinds or WAITING in kinds or BLOCKED in kinds:
            return Result(DOUBT if failed <= step.max_failures else UNKNOWN, churn=YES)
        if failed > step.max_failures or (failed and step.on_item_failure == "stop"):
            return Result(FAILED if failed > step.max_failures else UNKNOWN, churn=YES)
        done = [(key, value) for key, end, value in ends if end == DONE]
        if not scope and "/" not in path:
            self.now.outputs[path] = {
                "total": len(ends),
                "completed": len(done),
                "failed": failed,
                "skipped": skipped,
                "results": [(key, value) for key, value in done],
            }
        return Result(DONE, ",".join(value or "" for _, value in done), churn=churn)

    def _loop(self, step: Step, path: str, scope: str, words: list[str], mode: str, churn: int) -> Result:
        carried = "-"
        moved = churn
        rounds = step.until or step.iterations
        value = None
        for number in range(1, rounds + 1):
            seen = [*words, carried] if step.carries else words
            results = self._body(step.body, path + "/", f"{scope}#{number}", seen, mode, moved if number > 1 else churn)
            end, value = self._merge(step, results)
            moved = max([moved, *[one.churn for one in results.values()]])
            if end != DONE:
                if end == UNKNOWN:
                    self._all_may(step, path, scope)
                return Result(end, churn=YES)
            carried = results[step.body[-1].id].word
        if not scope and "/" not in path:
            self.now.outputs[path] = {"iterations": rounds, "v": value}
        return Result(DONE, "-" if value is None else value, value, moved)

    def _pipeline(self, step: Step, path: str, scope: str, words: list[str], mode: str, churn: int) -> Result:
        results = self._body(step.body, path + "/", scope, [" ".join(words)], mode, churn)
        end, _ = self._merge(step, results)
        moved = max([churn, *[one.churn for one in results.values()]])
        if end != DONE:
            return Result(end, churn=YES)
        value = results[step.body[-1].id].word
        if not scope and "/" not in path:
            self.now.outputs[path] = {"v": value}
        return Result(DONE, value, value, moved)
