"""Runs a case: real processes of the real command line, struck at random moments, and everything that is judged about them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.fuzz import model as oracle
from tests.fuzz.generator import PROBE, Case, Generator, Step, Writer, artifact_of, is_folded, paths
from tests.fuzz.model import Model, Options, Prediction, Record, Unit
from tests.fuzz.records import BadJournal, Ledger, Place, place_of, read_events, read_journal, read_ledger

STRIKES = ["KILL", "KILL", "KILL", "TERM", "TERM", "INT", "HUP", "FREEZE", "FORCE", "GROUP", "BESIDE", "BESIDE"]
SIGNALS = {"TERM": signal.SIGTERM, "INT": signal.SIGINT, "HUP": signal.SIGHUP}
STOPPED = {143, 130, 129, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}
STATUS = {
    oracle.DONE: {"completed"},
    oracle.FAILED: {"failed"},
    oracle.ALLOWED: {"failed"},
    oracle.SKIPPED: {"skipped"},
    oracle.WAITING: {"pending", "running", "interrupted"},
    oracle.DOUBT: {"interrupted", "running", "pending", "completed"},
}


class Stop(Exception):
    """Nothing more can be said about this case."""


@dataclass
class Violation:
    kind: str
    text: str


@dataclass
class Outcome:
    """Of one case."""

    seed: int
    violations: list[Violation] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)
    directory: str = ""


@dataclass
class Invocation:
    """One process that drives the run, and what it left."""

    code: int
    struck: bool
    ledger: Ledger
    events: list[dict[str, Any]]
    records: list[dict[str, Any]]  # the new ones of the journal
    stderr: str


class Harness:
    """Drives one case from its first invocation to its end."""

    def __init__(
        self,
        seed: int,
        root: Path,
        *,
        program: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        log: bool = False,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(f"script {seed}")
        self.case: Case = Generator(seed).case()
        self.root = root
        self.project = root / "project"
        self.fz = root / "fz"
        self.program = program or (sys.executable, "-m", "rerail")
        self.log_lines = log
        self.patience = float(os.environ.get("FUZZ_PATIENCE", "120"))
        self.outcome = Outcome(seed, directory=str(root))
        self.env = {**os.environ, **(env or {}), "FZ": str(self.fz), "HOME": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("RERAIL_STORE", "CI", "GITHUB_ACTIONS"):
            self.env.pop(name, None)
        if self.case.secret:
            self.env["FZ_SECRET"] = self.case.secret
        self.mark_in_environment = f"FZ={self.fz}\0".encode()
        self.run_id = "x"
        self.runs = ["x"]
        self.seq = 0
        self.line = 0
        self.blurred = False  # after a repair the journal begins with a base that is not read here
        self.was_struck = False
        self.model = Model(self.case)
        self.keys: dict[str, tuple[str, Unit]] = {}
        self.numbers: dict[tuple[str, Unit], int] = {}
        self.completed: dict[Unit, int] = {}
        self.repaired: set[str] = set()
        self.done_keys: set[str] = set()  # of work that is recorded as complete
        self.hooks_before: set[Unit] = set()  # what ended in an invocation that was struck
        self.cleanups_owed: set[Unit] = set()  # of failures in an invocation that was struck, until they have run
        self.marked_failed: set[str] = set()  # hooks of steps of which a person said that they failed
        self.fail_fast = False
        self.keeping = False  # the present invocation has `--changes keep`
        self.budget = 0
        self.damaged = False  # checkpoint.json, since the last invocation that wrote one

    # What is told -----------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        with open(self.root / "log", "a", encoding="utf-8") as file:
            file.write(text + "\n")
        if self.log_lines:
            print(text)

    def violation(self, kind: str, text: str) -> None:
        self.say(f"VIOLATION {kind}: {text}")
        self.outcome.violations.append(Violation(kind, text))

    # The case ---------------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self.set_up()
        with contextlib.suppress(Stop):
            self.story()
        self.outcome.figures["cases"] += 1
        return self.outcome

    def set_up(self) -> None:
        for directory in (self.project / "src", self.fz / "ctl", self.fz / "cnt"):
            directory.mkdir(parents=True)
        (self.fz / "probe").write_text(PROBE, encoding="utf-8")
        (self.fz / "ledger").touch()
        for step in self.case.steps:
            if step.reads == "src":
                self.write_source(step.id, "one")
        self.write_files()

    def write_source(self, name: str, content: str) -> None:
        self.model.sources[name] = content
        (self.project / "src" / f"{name}.txt").write_text(content + "\n", encoding="utf-8")

    def write_files(self) -> None:
        writer = Writer(self.case)
        for name, data in writer.write().items():
            text = json.dumps(data) if name.endswith(".json") else yaml.safe_dump(data, sort_keys=False, width=1000)
            (self.project / name).write_text(text, encoding="utf-8")
        for name, text in writer.texts.items():
            (self.project / name).write_text(text, encoding="utf-8")
        for path, behaviour in self.case.world.items():
            (self.fz / "ctl" / path.replace("/", "~")).write_text(behaviour.text(), encoding="utf-8")
            unchecked = self.fz / "ctl" / f"unchecked.{path.replace('/', '~')}"
            if behaviour.unchecked:
                unchecked.touch()
            else:
                unchecked.unlink(missing_ok=True)

    def story(self) -> None:
        rng = self.rng
        options = self.some_options(first=True)
        self.invoke(["run", "p.yaml", "--id", "x"], options, self.some_strike())
        for _ in range(rng.randint(2, 5)):
            self.between()
            self.drive()
        self.finish()

    def drive(self) -> None:
        """One more invocation, of some kind."""
        rng = self.rng
        dead = self.dead_letters()
        if dead and rng.random() < 0.6:
            for unit in dead:
                self.model.records.setdefault(unit, Record()).status = "running"  # its failed items are tried again
            self.invoke(["dlq", "retry", self.run_id], Options(), self.some_strike())
            return
        if rng.random() < 0.1 and not self.blurred and self.run_id in self.runs and len(self.runs) < 3:
            self.fork()
            return
        self.invoke(["resume", self.run_id], self.some_options(first=False), self.some_strike())

    def finish(self) -> None:
        """Mend the world, answer every question, resume until it is complete: it must come to that."""
        for behaviour in self.case.world.values():
            behaviour.first, behaviour.down, behaviour.killer, behaviour.hang = 0, set(), "", False
            behaviour.unchecked = False
        for step in all_steps(self.case.steps):
            step.timeout = False
        self.write_files()
        budget = Options(budget=100000) if self.case.budget else Options()
        for _ in range(5):
            self.answer(everything=True)
            done = self.invoke(["resume", self.run_id], dataclasses.replace(budget), None)
            if done.code == 0:
                break
        else:
            self.violation("never-completes", f"exit {done.code}: {done.stderr[-600:]}")
            raise Stop
        self.invoke(["resume", self.run_id], dataclasses.replace(budget), None, idle=True)
        self.judge_money(last=True)
        self.judge_show()
        for run in self.runs:
            gone = self.rerail("delete", run, "--yes")
            if gone.returncode:
                self.violation("exit", f"delete {run}: {gone.returncode} {gone.stderr[-300:]}")

    # Between two invocations ------------------------------------------------------------------------------------------

    def between(self) -> None:
        rng = self.rng
        self.answer(everything=False)
        for act in (
            self.change_world,
            self.edit,
            self.break_artifact,
            self.change_source,
            self.mark,
            self.drop,
            self.copy,
            self.damage,
        ):
            chance = {"change_world": 0.4, "edit": 0.3, "break_artifact": 0.25, "change_source": 0.15}
            chance |= {"mark": 0.12, "drop": 0.2, "copy": 0.07, "damage": 0.1}
            if rng.random() < chance[act.__name__]:
                act()

    def answer(self, *, everything: bool) -> None:
        """Approve or reject what waits; say what came of what is in doubt."""
        for step in self.case.steps:
            if (
                step.kind == "approve"
                and self.model.answers.get(step.id) != "approved"
                and (everything or self.rng.random() < 0.5)
            ):
                word = "approve" if everything or self.rng.random() < 0.7 else "reject"
                done = self.rerail(word, self.run_id, step.id)
                self.say(f"{word} {step.id}: {done.returncode} {done.stderr.strip()[:200]}")
                if done.returncode == 0:
                    self.model.answers[step.id] = "approved" if word == "approve" else "rejected"
                    record = self.model.records.setdefault((step.id, ""), Record())
                    if record.status in {"failed", "completed"}:
                        record.loose = True
        for (path, scope), record in list(self.model.records.items()):
            place = self.step_at(path)
            if place is None or place.kind != "run" or place.idempotent:
                continue
            lost = record.status == "completed" and self.model.broken.get(artifact_of(path, scope)) is False
            if record.status not in {"running", "interrupted"} and not lost:
                continue
            if not everything and self.rng.random() < 0.5:
                continue
            status = self.rng.choice(["completed", "pending"] if not place.artifact else ["pending"])
            done = self.rerail("mark", self.run_id, self.name_of(path, scope), status)
            self.say(f"mark {path} {scope} {status}: {done.returncode} {done.stderr.strip()[:200]}")
            if done.returncode == 0:
                top = self.model.records.get((path.split("/")[0], ""))
                if lost and top is not None and top is not record:
                    top.loose = True  # what it is in goes on with it
                record.status = status
                record.hands, record.saw, record.loose = {}, "", status == "completed"
                record.failures, record.cut = 0, False
            elif self.blurred or record.loose:
                record.loose = True

    def step_at(self, path: str) -> Step | None:
        step = paths(self.case.steps).get(path)
        return step.body[0] if step is not None and is_folded(step) else step

    def name_of(self, path: str, scope: str) -> str:
        """As the command line calls a unit."""
        keys: list[str] = []
        steps, parts = self.case.steps, path.split("/")
        left = scope
        names: list[tuple[str, str]] = []
        for index, part in enumerate(parts):
            step = next(one for one in steps if one.id == part)
            if step.kind in {"map", "loop"} and (index < len(parts) - 1 or is_folded(step)):
                names.append((step.kind, step.id))
            steps = step.body
        # A scope is that of the innermost map, and the numbers of the loops behind it; an item begins with the scope it is in.
        for kind, name in reversed(names):
            if kind == "loop":
                left, _, number = left.rpartition("#")
                keys.insert(0, number)
            else:
                keys.insert(0, left)
                at = left.rfind("." + name)
                left = left[:at] if at >= 0 else ""
        return f"{path}[{'::'.join(keys)}]" if keys else path

    def change_world(self) -> None:
        path = self.rng.choice(sorted(self.case.world))
        behaviour = self.case.world[path]
        if behaviour.hang:
            return
        if behaviour.down or self.rng.random() < 0.4:
            behaviour.down, behaviour.first, behaviour.unchecked = set(), 0, False
        else:
            behaviour.down = {"*"}
            step = paths(self.case.steps)[path]
            if is_folded(step) and self.rng.random() < 0.7 and "/" not in path:
                behaviour.down = {self.rng.choice(step.items)}
        self.say(f"world: {path} {behaviour}")
        self.write_files()

    def edit(self) -> None:
        rng = self.rng
        step = rng.choice(all_steps(self.case.steps))
        kind = rng.choice(["token", "token", "note", "allow", "retry", "items", "rounds", "label"])
        if kind == "token" and step.kind == "run":
            step.token += 100
        elif kind == "note" and step.kind == "run":
            step.note += 1
        elif kind == "token" and step.kind == "write":
            step.token += 100
        elif kind == "allow" and step.kind not in {"approve", "write"} and step in self.case.steps:
            step.allow_failure = not step.allow_failure
        elif kind == "retry" and step.kind == "run":
            step.retry = rng.choice([1, 2, 3])
        elif kind == "items" and step.kind == "map":
            if len(step.items) > 1 and rng.random() < 0.5:
                step.items.pop(rng.randrange(len(step.items)))
            else:
                step.items.append(f"{step.id}n{len(step.items)}")
        elif kind == "rounds" and step.kind == "loop" and not step.until:
            step.iterations += 1
        elif kind == "label":
            self.case.version += 1
        else:
            return
        self.say(f"edit: {kind} of {step.id}")
        self.write_files()

    def break_artifact(self) -> None:
        found = sorted((self.project / "art").glob("*")) if (self.project / "art").exists() else []
        owners = {}
        for unit, record in self.model.records.items():
            step = self.step_at(unit[0])
            if step is None or not step.artifact or record.status != "completed" or not record.saw:
                continue
            owners[artifact_of(*unit)] = step
        found = [one for one in found if f"art/{one.name}" in owners]
        if not found:
            return
        victim = self.rng.choice(found)
        how = self.rng.choice(["remove", "empty", "scribble", "scribble"])
        if how == "remove":
            victim.unlink()
        else:
            victim.write_text("" if how == "empty" else "scribbled\n", encoding="utf-8")
        name = f"art/{victim.name}"
        self.model.broken[name] = owners[name].artifact == "kept"
        self.say(f"{how} {name}")

    def change_source(self) -> None:
        readers = [step for step in self.case.steps if step.reads == "src"]
        if readers:
            step = self.rng.choice(readers)
            self.write_source(step.id, self.rng.choice(["one", "two", "three"]))
            self.say(f"source of {step.id} is {self.model.sources[step.id]}")

    def mark(self) -> None:
        step = self.rng.choice(self.case.steps)
        record = self.model.records.get((step.id, ""))
        if record is None or step.kind in {"approve", "write"} or record.status not in {"completed", "failed"}:
            return
        status = self.rng.choice(["pending", "failed"])
        if step.kind == "run" and record.status == "failed" and not step.artifact and self.rng.random() < 0.4:
            status = "completed"
        done = self.rerail("mark", self.run_id, step.id, status)
        self.say(f"mark {step.id} {status}: {done.returncode} {done.stderr.strip()[:200]}")
        if done.returncode:
            self.violation("exit", f"mark {step.id} {status}: {done.returncode} {done.stderr[-300:]}")
            return
        if status == "completed":
            record.status, record.hands, record.saw, record.loose = "completed", {}, "", True
        else:
            record.status, record.anew = status, True
            if status == "failed" and step.on_failure:
                self.marked_failed.add(step.on_failure)
            if step.allow_failure:
                record.loose = status == "failed"

    def drop(self) -> None:
        """Give an item up that failed for good."""
        for step in self.case.steps:
            record = self.model.records.get((step.id, ""))
            if step.kind != "map" or record is None or record.loose or record.status not in {"failed", "completed"}:
                continue
            if record.anew:
                continue  # marked a moment ago: nothing is left of what it had done
            failed = [
                key
                for (path, key), one in self.model.records.items()
                if path == f"{step.id}[]" and one.status == "failed"
            ]
            if not failed or step.on_item_failure != "dlq" or self.blurred or step.allow_failure:
                continue
            key = self.rng.choice(sorted(failed))
            done = self.rerail("dlq", "drop", self.run_id, key, "--step", step.id)
            self.say(f"drop {step.id}[{key}]: {done.returncode} {done.stderr.strip()[:200]}")
            if done.returncode:
                self.violation("exit", f"dlq drop {step.id}[{key}]: {done.returncode} {done.stderr[-300:]}")
                continue
            self.model.dropped.add((step.id, key))
            record.loose = record.status == "completed"

    def copy(self) -> None:
        """The project is brought back from a backup: other inodes, the same bytes."""
        other = self.root / "copy"
        subprocess.run(["cp", "-a", str(self.project), str(other)], check=True)
        shutil.rmtree(self.project)
        other.rename(self.project)
        self.say("the project is a copy of what it was")

    def damage(self) -> None:
        """Of the cache, which must not matter; or of the journal, which must be noticed, and repaired."""
        directory = self.project / ".rerail" / "runs" / self.run_id
        if self.blurred and self.rng.random() < 0.5:
            self.damage_again(directory)
            return
        if self.rng.random() < 0.6 or self.blurred:
            path = directory / "checkpoint.json"
            if path.exists():
                if self.rng.random() < 0.5:
                    path.unlink()
                else:
                    data = bytearray(path.read_bytes())
                    data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(7)
                    path.write_bytes(data)
                self.damaged = True
                self.say("checkpoint.json is damaged")
            return
        self.damage_journal(directory)

    def damage_journal(self, directory: Path) -> None:
        names = sorted(one for one in os.listdir(directory) if one.startswith("journal-"))
        path = directory / names[0]
        data = bytearray(path.read_bytes())
        lines = bytes(data).rstrip(b"\n").split(b"\n")
        if len(lines) < 6:
            return
        victim = self.rng.randrange(1, len(lines) // 2)
        at = sum(len(line) + 1 for line in lines[:victim]) + self.rng.randrange(len(lines[victim]))
        data[at] ^= 1
        path.write_bytes(data)
        self.say(f"journal is damaged at byte {at} of {names[0]}")
        before = read_ledger(self.fz / "ledger").lines
        for command in (["verify", self.run_id], ["resume", self.run_id]):
            done = self.rerail(*command)
            if done.returncode != 6:
                self.violation("damage", f"{command} of a damaged journal: exit {done.returncode} {done.stderr[-300:]}")
        if read_ledger(self.fz / "ledger").lines != before:
            self.violation("damage", "something ran although the journal is damaged")
        done = self.rerail("repair", self.run_id)
        self.say(f"repair: {done.returncode} {done.stderr.strip()[:300]}")
        if done.returncode:
            self.violation("damage", f"repair: exit {done.returncode} {done.stderr[-300:]}")
            raise Stop
        self.blurred = True
        self.repaired.add(self.run_id)
        self.adopt_show()

    def damage_again(self, directory: Path) -> None:
        """A bit of what a repair has written: it is noticed, or at least nobody forgets that the run had begun."""
        names = sorted(one for one in os.listdir(directory) if one.startswith("journal-") and one.endswith(".jsonl"))
        path = directory / names[-1]
        data = bytearray(path.read_bytes())
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(7)
        path.write_bytes(data)
        done = self.rerail("verify", self.run_id)
        self.say(f"journal is damaged again in {names[-1]}: verify says {done.returncode} {done.stderr.strip()[:200]}")
        if done.returncode == 6:
            done = self.rerail("repair", self.run_id)
            if done.returncode:
                self.violation("damage", f"second repair: exit {done.returncode} {done.stderr[-300:]}")
                raise Stop
        state = json.loads(self.rerail("show", self.run_id, "--json").stdout)
        if state["status"] == "pending" or not any(step["status"] != "pending" for step in state["steps"]):
            self.violation("damage", "a run that had begun is taken for one that never began")
        self.adopt_show()

    def adopt_show(self) -> None:
        """After a repair: what could be proved. What was not complete before cannot be complete now."""
        state = json.loads(self.rerail("show", self.run_id, "--json").stdout)
        for step in state["steps"]:
            place = place_of(self.case, step["id"], step.get("item"))
            if place is None or place.step is None or place.is_item:
                continue
            before = self.model.records.get(place.unit)
            if (
                step["status"] == "completed"
                and (before is None or before.status not in {"completed"})
                and place.step.kind == "run"
            ):
                self.violation("repair", f"{step['id']} is said to be complete, and was not before")
            if step["status"] == "interrupted" and place.step.kind == "run":
                self.model.records.setdefault(place.unit, Record()).status = "interrupted"  # its record was lost
        for record in self.model.records.values():
            record.loose = True
        self.model.loose = True

    def dead_letters(self) -> list[Unit]:
        """Maps that are complete although items of them failed, and the loops around them: those go on when items are retried."""
        found: list[Unit] = []
        for step in self.case.steps:
            record = self.model.records.get((step.id, ""))
            if record is None or record.status != "completed" or record.loose:
                continue
            if step.kind == "map" and self.has_dead_letters(step, step.id, ""):
                found.append((step.id, ""))
            if step.kind == "loop":
                last = f"#{step.until or step.iterations}"
                maps = [
                    one
                    for one in step.body
                    if one.kind == "map" and self.has_dead_letters(one, f"{step.id}/{one.id}", last)
                ]
                found += [
                    unit
                    for one in maps
                    for unit in [(step.id, ""), (f"{step.id}[]", last), (f"{step.id}/{one.id}", last)]
                ]
        return found

    def has_dead_letters(self, step: Step, path: str, scope: str) -> bool:
        items = [one for (name, key), one in self.model.records.items() if name == f"{path}[]" and key.startswith(scope)]
        return step.on_item_failure == "dlq" and any(one.status == "failed" for one in items)

    def fork(self) -> None:
        rng = self.rng
        step = rng.choice(self.case.steps)
        new = f"y{len(self.runs)}"
        shared = {one.id for one in self.case.steps} - self.model._closure(step.id)
        records = {}
        for (path, scope), record in self.model.records.items():
            top = path.split("/")[0].removesuffix("[]")
            if top in shared and self.model.records.get((top, ""), Record()).status in {"completed", "skipped"}:
                records[path, scope] = copy.deepcopy(record)
            elif top in shared and self.model.records.get((top, ""), Record()).status == "failed":
                records[path, scope] = dataclasses.replace(copy.deepcopy(record), loose=True)
        old = self.model
        self.model = Model(self.case)
        self.model.is_fork = True
        self.model.records, self.model.fails = records, old.fails
        self.model.sources, self.model.broken = old.sources, old.broken
        self.model.answers = {one: word for one, word in old.answers.items() if one in shared and word == "approved"}
        self.model.lists = {unit: keys for unit, keys in old.lists.items() if unit[0].split("/")[0] in shared}
        for one in self.case.steps:
            if one.kind == "approve" and one.id in shared and (one.id, "") not in records:
                self.model.answers.pop(one.id, None)
        adopted = {
            path for (path, scope), one in records.items() if not scope and one.status == "completed" and not one.loose
        }
        self.model.dropped = {unit for unit in old.dropped if unit[0] in adopted}
        self.completed = {}
        self.runs.append(new)
        source, self.run_id, self.seq = self.run_id, new, 0
        self.budget = 0  # that of the file holds, whatever the other run was given on its way
        self.invoke(["fork", source, "--from", step.id, "--id", new], Options(), self.some_strike(), forking=True)

    # An invocation ----------------------------------------------------------------------------------------------------

    def some_options(self, *, first: bool) -> Options:
        rng = self.rng
        options = Options(parallel=rng.choice([1, 2, 2, 3, 4]))
        if rng.random() < 0.12:
            options.fail_fast = first
        if rng.random() < 0.12:
            options.until = rng.choice(self.case.steps).id
        if rng.random() < (0.06 if first else 0.12):
            options.from_step = rng.choice(self.case.steps).id
        options.fast = rng.random() < 0.1 and not first
        options.new = first
        if rng.random() < 0.1 and not first:
            options.keep = True
        if rng.random() < 0.1 and not first:
            options.no_restore = True
        if self.case.budget and rng.random() < 0.3:
            options.budget = self.case.budget + rng.randint(5, 100)
        return options

    def some_strike(self) -> tuple[str, str, int, float] | None:
        """How, by what it is triggered (lines of the ledger, events), at which, and how long after that."""
        rng = self.rng
        if rng.random() < 0.45:
            return None
        trigger = rng.choice(["ledger", "ledger", "event"])
        return (
            rng.choice(STRIKES),
            trigger,
            rng.choice([1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 14]),
            rng.choice([0, 0, 0.003, 0.01, 0.03]),
        )

    def words(self, options: Options) -> list[str]:
        words = ["--parallel", str(options.parallel)]
        words += ["--fail-fast"] if options.fail_fast and options.new else []
        words += ["--until", options.until] if options.until else []
        words += ["--from", options.from_step] if options.from_step else []
        words += ["--changes", "keep"] if options.keep else []
        words += ["--verify", "fast"] if options.fast else []
        words += ["--no-restore"] if options.no_restore else []
        words += ["--budget-usd", f"{options.budget / 100:.2f}"] if options.budget else []
        return words

    def rerail(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        self.outcome.figures["commands"] += 1
        done = subprocess.run(
            [*self.program, *arguments], cwd=self.project, env=self.env, capture_output=True, text=True, timeout=300
        )
        self.judge_text(arguments[0], done.stdout, done.stderr, done.returncode)
        return done

    def judge_text(self, what: str, out: str, err: str, code: int) -> None:
        if "\nTraceback" in "\n" + err or code == 70:
            self.violation("crash", f"{what}: exit {code} {err[-1500:]}")
        if self.case.secret and (self.case.secret in out or self.case.secret in err):
            self.violation("secret", f"on the screen of {what}")

    def invoke(
        self,
        command: list[str],
        options: Options,
        strike: tuple[str, str, int, float] | None,
        *,
        idle: bool = False,
        forking: bool = False,
    ) -> Invocation:
        self.read_counters()
        run_options = self.words(options) if command[0] != "dlq" else []
        if options.keep and any(
            record.cut or record.status in {"running", "interrupted"} for record in self.model.records.values()
        ):
            options.keep = False
            run_options = self.words(options)
        # These are recorded, and hold for later invocations.
        self.fail_fast = options.fail_fast = options.fail_fast or self.fail_fast
        self.budget = options.budget or self.budget
        ledger = read_ledger(self.fz / "ledger")
        self.model.spent = ledger.before.get(self.run_id, 0)
        prediction = self.model.predict(dataclasses.replace(options, budget=self.budget))
        if idle:
            self.judge_idle(prediction)
        plan = (
            self.plan(options)
            if strike is None and command[0] == "resume" and not options.until and self.rng.random() < 0.7
            else None
        )
        self.say(f"$ rerail {' '.join([*command, *run_options])}   strike {strike}")
        self.say(f"  must {sorted(prediction.must)} may {sorted(prediction.may)} ends {sorted(prediction.ends)}")
        done = self.execute([*command, "--json", *run_options], strike, ledger.lines)
        self.outcome.figures["invocations"] += 1
        self.outcome.figures["deaths"] += done.struck
        self.outcome.figures["attempts"] += len(done.ledger.starts)
        self.say(f"  exit {done.code}{' struck' if done.struck else ''} ran {[one.unit for one in done.ledger.starts]}")
        self.judge(command, options, prediction, plan, done)
        self.adopt(prediction, done, options)
        self.was_struck = done.struck
        ended = {one[1] for one in done.ledger.ends}
        self.hooks_before = ended if done.struck else set()
        self.cleanups_owed = (
            self.cleanups_owed | (set(self.failed_with_cleanup(done)) if done.struck else set())
        ) - ended
        self.marked_failed = set() if not done.struck else self.marked_failed
        self.damaged = self.damaged and not done.records
        return done

    def read_counters(self) -> None:
        for unit in self.known_units():
            path = self.fz / "cnt" / f"{unit[0].replace('/', '~')}.{unit[1]}"
            if path.exists():
                self.model.fails[unit] = int(path.read_text(encoding="utf-8"))

    def known_units(self) -> list[Unit]:
        found: list[Unit] = []
        for step in self.case.steps:
            found += self.model.units(step, step.id, "")
        return found

    def plan(self, options: Options) -> dict[str, str] | None:
        done = self.rerail("resume", self.run_id, "--dry-run", "--json", *self.words(options))
        if done.returncode or not done.stdout.strip():
            return None
        decisions = json.loads(done.stdout)["decisions"]
        return {one["step"]: one["decision"] for one in decisions if not one.get("unless_unchanged")}

    def execute(self, command: list[str], strike: tuple[str, str, int, float] | None, first: int) -> Invocation:
        out, err = self.root / "stdout", self.root / "stderr"
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            process = subprocess.Popen(
                [*self.program, *command],
                cwd=self.project,
                env=self.env,
                stdout=stdout,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        if strike is not None:
            self.strike(process, strike, first, out)
        try:
            code = process.wait(timeout=max(self.patience, 20))
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
            self.violation("hang", f"{command} did not end")
        self.census()
        ledger = read_ledger(self.fz / "ledger", first)
        text = err.read_text(encoding="utf-8", errors="replace")
        self.judge_text(command[0], out.read_text(encoding="utf-8", errors="replace"), text, code)
        struck = code == -signal.SIGKILL or (code in STOPPED and (strike is not None or ledger.killers > 0))
        events = read_events(out)
        return Invocation(code, struck, ledger, events, self.new_records(), text)

    def new_records(self) -> list[dict[str, Any]]:
        directory = self.project / ".rerail" / "runs" / self.run_id
        if not directory.exists():
            return []
        if self.run_id in self.repaired:
            return self.records_of_history()
        try:
            records = read_journal(directory, self.run_id)
        except BadJournal as error:
            self.violation("journal", str(error))
            raise Stop from error
        except FileNotFoundError:
            return []
        fresh = records[self.seq :]
        self.seq = len(records)
        return fresh

    def records_of_history(self) -> list[dict[str, Any]]:
        done = self.rerail("history", self.run_id, "--json")
        records = sorted(json.loads(done.stdout), key=lambda one: one["seq"])
        fresh = [one for one in records if one["seq"] > self.seq]
        self.seq = max([self.seq, *[one["seq"] for one in records]])
        return fresh

    def strike(
        self, process: subprocess.Popen[bytes], strike: tuple[str, str, int, float], first: int, out: Path
    ) -> None:
        how, trigger, number, delay = strike
        while process.poll() is None:
            if trigger == "ledger":
                count = (self.fz / "ledger").read_bytes().count(b"\n") - first
            else:
                count = out.read_bytes().count(b"\n")
            if count >= number:
                break
            time.sleep(0.002)
        time.sleep(delay)
        if process.poll() is not None:
            return
        if how in SIGNALS:
            process.send_signal(SIGNALS[how])
        elif how == "KILL":
            process.kill()
        elif how == "GROUP":
            os.killpg(process.pid, signal.SIGKILL)
        elif how == "FREEZE":
            process.send_signal(signal.SIGSTOP)
            if (
                self.rng.random() < 0.3
                and self.is_owner(out)
                and (self.project / ".rerail" / "runs" / self.run_id / "lock").exists()
            ):
                second = self.rerail("resume", self.run_id)
                if (
                    second.returncode != 4
                    and out.read_bytes().count(b"\n") > 0
                    and b"run-finished" not in out.read_bytes()
                ):
                    self.violation(
                        "owner", f"resume beside a stopped owner: exit {second.returncode} {second.stderr[-300:]}"
                    )
            process.kill()
        elif how == "BESIDE":
            self.beside(process, out)
        elif how == "FORCE":
            done = self.rerail("stop", "--force", self.run_id)
            if process.poll() is None:
                time.sleep(0.05)
            if process.poll() is None:
                if done.returncode == 0:
                    self.say("stop --force ended, and the owner lives")
                process.kill()

    def is_owner(self, out: Path) -> bool:
        """Whether what is stopped now has taken the run, has not given it back, and is not killed by its own step meanwhile."""
        said = out.read_bytes()
        ended = any(word in said for word in (b'"run-finished"', b'"run-paused"', b'"run-interrupted"'))
        return bool(said) and not ended and not any(behaviour.killer for behaviour in self.case.world.values())

    def beside(self, process: subprocess.Popen[bytes], out: Path) -> None:
        """Somebody looks, or tries to take the run over, while it lives."""
        command, refused = self.rng.choice(
            [
                (["delete", self.run_id, "--yes"], True),
                (["resume", self.run_id], True),
                (["prune", "--older-than", "1h"], False),
                (["show", self.run_id, "--json"], False),
                (["plan", self.run_id, "--json"], False),
                (["list", "--json"], False),
                (["cost", self.run_id, "--json"], False),
            ]
        )
        # Else it could end meanwhile, and the command would be right to do what it does.
        process.send_signal(signal.SIGSTOP)
        if self.is_owner(out):
            done = self.rerail(*command)
            self.say(f"beside: {command}: exit {done.returncode}")
            if refused and done.returncode != 4:
                self.violation("owner", f"{command} beside its owner: exit {done.returncode} {done.stderr[-300:]}")
            elif not refused and done.returncode:
                self.violation("exit", f"{command} beside its owner: exit {done.returncode} {done.stderr[-300:]}")
        process.send_signal(signal.SIGCONT)

    def census(self) -> None:
        """Nothing survives: not its step, not rerail. Whatever inherited our environment is looked for."""
        deadline = time.monotonic() + self.patience
        while alive := self.survivors():
            if time.monotonic() > deadline:
                self.violation("survivors", f"{alive} are alive")
                for pid in alive:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.01)

    def survivors(self) -> dict[int, str]:
        found = {}
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and self.mark_in_environment in Path(f"/proc/{entry}/environ").read_bytes():
                    found[int(entry)] = (
                        Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80]
                    )
        return found

    # Judging ----------------------------------------------------------------------------------------------------------

    def judge(
        self, command: list[str], options: Options, prediction: Prediction, plan: dict[str, str] | None, done: Invocation
    ) -> None:
        ran = Counter(one.unit for one in done.ledger.starts if self.is_step(one.unit))
        for unit in sorted(ran):
            if unit not in prediction.must | prediction.may:
                record = self.model.records.get(unit)
                self.violation(
                    "ran-again", f"{unit} ran in {command}; it was {record.status if record else 'unknown'} {record}"
                )
            step = self.step_at(unit[0])
            if step is not None and ran[unit] > step.retry and not (prediction.open and unit in prediction.may):
                self.violation("too-often", f"{unit} ran {ran[unit]} times, {step.retry} attempts are allowed")
        self.judge_keys(done)
        self.judge_acknowledged(done)
        self.judge_order(done)
        if done.code not in {0, 1, 5} and not done.struck:
            self.violation("exit", f"{command}: exit {done.code}: {done.stderr[-500:]}")
        if not done.struck:
            self.judge_end(command, options, prediction, plan, done, ran)
            self.judge_hooks(done, prediction)
        if self.case.secret:
            self.judge_secret()
        if self.rng.random() < 0.2:
            self.judge_money(last=False)

    def is_step(self, unit: Unit) -> bool:
        return self.step_at(unit[0]) is not None

    def judge_keys(self, done: Invocation) -> None:
        for start in done.ledger.starts:
            if start.key in self.done_keys and not self.blurred:
                self.violation("key", f"{start.unit} has completed, and runs with the same key again: {start.key}")
            owner = self.keys.setdefault(start.key, (start.run, start.unit))
            if owner != (start.run, start.unit):
                self.violation("key", f"{start.unit} has the key of {owner}: {start.key}")
            before = self.numbers.get((start.run, start.unit), 0)
            if start.attempt <= before and not self.is_reset(start.unit):
                self.violation("attempt", f"{start.unit}: attempt {start.attempt} after {before}")
            self.numbers[start.run, start.unit] = start.attempt

    def is_reset(self, unit: Unit) -> bool:
        return "/" in unit[0] or unit[1] != "" or self.blurred  # a map that runs anew counts its items anew

    def judge_acknowledged(self, done: Invocation) -> None:
        """What was said is recorded; what is recorded as complete was done."""
        seqs = {one["seq"]: one["event"] for one in done.records}
        for event in done.events:
            if "seq" in event and seqs.get(event["seq"]) != event["event"] and not self.blurred:
                self.violation(
                    "acknowledged", f"said and not recorded: {event['seq']} {event['event']} {event.get('step')}"
                )
        ended = Counter((unit, attempt) for _, unit, attempt, _ in done.ledger.ends)
        for record in done.records:
            if record["event"] != "step-completed":
                continue
            place = place_of(self.case, record["step"], record.get("item"))
            if place is None or (
                place.step is not None
                and (place.step.kind != "run" or (place.is_item and not self.folded(record["step"])))
            ):
                continue
            if (
                not ended[place.unit, record["attempt"]]
                and place.unit[0].split("/")[-1] not in self.case.finals
                and not place.hook
            ):
                self.violation("claim", f"{place.unit} is recorded as complete, and did not end well")

    def folded(self, path: str) -> bool:
        step = paths(self.case.steps).get(path)
        return step is not None and is_folded(step)

    def judge_order(self, done: Invocation) -> None:
        """Nothing starts before what it needs has ended."""
        last_end = {unit: line for _, unit, _, line in done.ledger.ends}
        for start in done.ledger.starts:
            step = paths(self.case.steps).get(start.unit[0])
            if step is None or is_folded(step):
                continue
            for need in step.needs:
                path = start.unit[0][: start.unit[0].rfind("/") + 1] + need
                end = last_end.get((path, start.unit[1]))
                if end is not None and end > start.line:
                    self.violation("order", f"{start.unit} started before {path} had ended")

    def judge_end(
        self,
        command: list[str],
        options: Options,
        prediction: Prediction,
        plan: dict[str, str] | None,
        done: Invocation,
        ran: Counter[Unit],
    ) -> None:
        for unit in sorted(prediction.must - set(ran)):
            step = self.step_at(unit[0])
            if step is not None and not step.timeout:
                self.violation("not-run", f"{unit} had to run in {command}, and did not: {self.model.records.get(unit)}")
        state = self.checkpoint()
        if state is None:
            return
        end = (state["status"], done.code)
        if end not in prediction.ends:
            self.violation("end", f"{command}: {end}, expected {sorted(prediction.ends)}: {done.stderr[-400:]}")
        elif done.code == 1 and state["status"] != "failed":
            self.violation("end", f"exit 1, and the run is {state['status']}")
        steps = {one["id"]: one for one in state["steps"] if "item" not in one}
        if not prediction.open:
            self.judge_steps(prediction, steps, command)
            if prediction.ends == {("completed", 0)}:
                self.judge_written(prediction)
            if not self.blurred:  # what is inside of maps and loops may be beyond proof then
                self.judge_artifacts(prediction)
        if plan is not None and not prediction.open:
            self.judge_plan(plan, prediction, ran)

    def judge_steps(self, prediction: Prediction, steps: dict[str, Any], command: list[str]) -> None:
        for step in self.case.steps:
            result = prediction.results[step.id]
            shown = steps.get(step.id)
            if shown is None or result.end not in STATUS:
                continue
            if shown["status"] not in STATUS[result.end]:
                self.violation("status", f"{step.id} is {shown['status']} after {command}, expected {result.end}")
            elif result.end == oracle.DONE:
                self.judge_outputs(step, result, shown["outputs"], prediction)

    def judge_outputs(self, step: Step, result: oracle.Result, outputs: dict[str, Any], prediction: Prediction) -> None:
        if step.kind == "run":
            if outputs.get("v") != result.value:
                self.violation("outputs", f"{step.id} handed out {outputs}, expected v={result.value!r}")
            if "s" in outputs and outputs["s"] != "***":
                self.violation("secret", f"outputs of {step.id}")
            return
        expected = prediction.outputs.get(step.id)
        if expected is None:
            return
        got = {name: outputs.get(name) for name in expected}
        if step.kind == "map":
            got["results"] = [(one["key"], one["outputs"].get("v")) for one in outputs.get("results") or []]
        if got != expected:
            self.violation("outputs", f"{step.id} handed out {got}, expected {expected}")

    def judge_artifacts(self, prediction: Prediction) -> None:
        for name, content in prediction.artifacts.items():
            path = self.project / name
            got = path.read_text(encoding="utf-8") if path.exists() else None
            if got != content:
                self.violation("artifact", f"{name} holds {got!r}, expected {content!r}")

    def judge_written(self, prediction: Prediction) -> None:
        for name, content in prediction.written.items():
            path = self.project / name
            got = path.read_text(encoding="utf-8") if path.exists() else None
            if got != content:
                self.violation("written", f"{name} holds {got!r}, expected {content!r}")

    def judge_plan(self, plan: dict[str, str], prediction: Prediction, ran: Counter[Unit]) -> None:
        for step in self.case.steps:
            decision = plan.get(step.id)
            mine = [unit for unit in ran if unit[0] == step.id or unit[0].startswith(step.id + "/")]
            if decision in {"reuse", "restore"} and mine:
                self.violation("plan", f"the plan reuses {step.id}, and {mine} ran")
            result = prediction.results[step.id]
            if (
                (
                    decision == "rerun"
                    and not mine
                    and step.kind == "run"
                    and result.end in {oracle.DONE, oracle.FAILED, oracle.ALLOWED}
                )
                and not step.timeout
                and (step.id, "") not in prediction.may
            ):
                self.violation("plan", f"the plan runs {step.id} again, and it did not run")

    def judge_hooks(self, done: Invocation, prediction: Prediction) -> None:
        ran = Counter(one.unit for one in done.ledger.starts)
        finished = [one for one in done.records if one["event"] == "run-finished"]
        for name in self.case.finals:
            words = [one.words for one in done.ledger.starts if one.unit[0] == name]
            wanted = 1 if finished else 0
            least = (
                wanted if (name, "") not in self.hooks_before else 0
            )  # a sequence that was cut off goes on where it was
            if (len(words) > wanted and not self.was_struck) or len(words) < least:
                self.violation("hooks", f"{name} ran {len(words)} times at the end, expected {wanted}")
            if words and finished and words[-1] != finished[-1]["status"]:
                self.violation("hooks", f"{name} was told {words[-1]}, and the run is {finished[-1]['status']}")
        failed = self.failed_with_cleanup(done)
        hooks = {step.on_failure for step in all_steps(self.case.steps) if step.on_failure}
        for unit in set(failed) | {unit for unit in ran if unit[0].split("/")[-1] in hooks}:
            least = failed[unit] if unit not in self.hooks_before else 0
            excused = self.was_struck or unit in self.cleanups_owed or unit[0] in self.marked_failed
            if ran[unit] < least or (ran[unit] > failed[unit] and not excused):
                self.violation("hooks", f"{unit} ran {ran[unit]} times, its step failed for good {failed[unit]} times")

    def failed_with_cleanup(self, done: Invocation) -> Counter[Unit]:
        """How often steps failed for good that have a clean-up, by that."""
        failed: Counter[Unit] = Counter()
        for record in done.records:
            if record["event"] == "step-failed" and record.get("retry_at") is None:
                place = place_of(self.case, record["step"], record.get("item"))
                if place is None or place.step is None or not place.step.on_failure:
                    continue
                if place.is_item and not self.folded(record["step"]):
                    continue
                base = record["step"] if not place.is_item else record["step"] + "/" + place.step.id
                failed[base[: base.rfind("/") + 1] + place.step.on_failure, place.unit[1]] += 1
        return failed

    def judge_idle(self, prediction: Prediction) -> None:
        if prediction.must:
            self.violation("model", f"after a complete run {prediction.must} had to run")

    def judge_secret(self) -> None:
        secret = self.case.secret.encode()
        for directory, _, names in os.walk(self.project / ".rerail"):
            for name in names:
                try:
                    data = (Path(directory) / name).read_bytes()
                except OSError:
                    continue
                if secret in data or self.case.secret in name:
                    self.violation("secret", f"in {directory}/{name}")

    def judge_money(self, *, last: bool) -> None:
        ledger = read_ledger(self.fz / "ledger")
        done = self.rerail("cost", self.run_id, "--json")
        if done.returncode:
            return
        total = round(json.loads(done.stdout)["total"]["cost_usd"] * 100, 4)
        least, most = ledger.after.get(self.run_id, 0), ledger.before.get(self.run_id, 0)
        if self.run_id in self.repaired:
            least = 0
        if not least <= total <= most:
            self.violation("money", f"{total} cents are counted, {least} to {most} were spent")

    def judge_show(self) -> None:
        done = self.rerail("show", self.run_id, "--json")
        state, saved = json.loads(done.stdout), self.checkpoint()
        if saved is None or [one["status"] for one in state["steps"]] != [one["status"] for one in saved["steps"]]:
            self.violation("show", "show and checkpoint.json differ")

    def checkpoint(self) -> dict[str, Any] | None:
        path = self.project / ".rerail" / "runs" / self.run_id / "checkpoint.json"
        if not path.exists() and not self.damaged:
            self.violation("checkpoint", "there is none")
            return None
        if self.damaged:  # a resume that had nothing to do leaves it
            shown: dict[str, Any] = json.loads(self.rerail("show", self.run_id, "--json").stdout)
            return shown
        text = path.read_text(encoding="utf-8")
        cut = text.rindex(',\n  "integrity_hash"')
        found: dict[str, Any] = json.loads(text)
        if hashlib.sha256((text[:cut] + "\n}").encode()).hexdigest() not in found["integrity_hash"]:
            self.violation("checkpoint", "its hash is wrong")
        return found

    # Taking over what is recorded -------------------------------------------------------------------------------------

    def adopt(self, prediction: Prediction, done: Invocation, options: Options) -> None:
        model = self.model
        self.keeping = options.keep
        saw = {one.unit: one.saw for one in done.ledger.starts}
        if not done.struck and done.code in {0, 1, 5}:
            model.broken = {
                name: kept for name, kept in model.broken.items() if name not in prediction.artifacts or prediction.open
            }
        state = self.checkpoint() if not done.struck and model.answers and not self.damaged else None
        for one in state["steps"] if state is not None else ():
            if one["id"] in model.answers and one["status"] == "pending":
                model.answers[one["id"]] = "unsure"  # answered before it was reached, or what it asks about has changed
        keys = {(one.unit, one.attempt): one.key for one in done.ledger.starts}
        for event in done.records:
            self.take(event, saw)
            if (
                event["event"] == "step-completed"
                and (place := place_of(self.case, event["step"], event.get("item"))) is not None
            ):
                self.done_keys |= (
                    {keys[place.unit, event["attempt"]]} if (place.unit, event["attempt"]) in keys else set()
                )
        if model.loose and not done.struck:
            model.loose = False
        for unit, record in model.records.items():
            name = artifact_of(*unit)
            path = self.project / name
            whole = oracle.value_of(record.saw) + "\n" if record.saw else None
            if name in model.broken and path.exists() and path.read_text(encoding="utf-8") == whole:
                del model.broken[name]

    def take(self, event: dict[str, Any], saw: dict[Unit, str]) -> None:
        kind = event["event"]
        if "step" not in event:
            return
        place = place_of(self.case, event["step"], event.get("item"))
        if place is None or place.step is None:
            return
        model = self.model
        if kind == "items-listed" and not place.is_item:
            model.lists[place.unit] = list(event.get("keys") or [])
        unit = place.unit
        if place.is_item:
            item = (f"{event['step']}[]", unit[1])
            self.set_record(model.records.setdefault(item, Record()), place, kind, event, {})
            if not self.folded(event["step"]):
                if kind == "step-invalidated" and "reopened" not in event:
                    self.forget(event["step"], unit[1])
                return
        record = model.records.setdefault(unit, Record())
        if place.step.kind == "approve" and kind in {
            "step-invalidated",
            "approval-given",
            "step-failed",
        }:  # failed: asks again
            self.model.answers.pop(unit[0], None)
            if kind == "approval-given":
                self.model.answers[unit[0]] = "approved" if event.get("approved") else "rejected"
        given_up = kind == "step-invalidated" and not event.get("reopened")
        given_up = given_up or (kind == "step-marked" and event["status"] != "completed")
        if given_up and place.step.body:
            self.forget(event["step"], unit[1])
            record.definition = ""
        if kind == "step-marked":  # there is nothing left to compare what it produces with, now or later
            for later in model._closure(unit[0].split("/")[0]) - {unit[0].split("/")[0]}:
                if (later, "") in model.records:
                    model.records[later, ""].loose = True
        self.set_record(record, place, kind, event, saw)

    def forget(self, path: str, scope: str) -> None:
        """What is inside a map, loop or pipeline that begins anew."""
        self.model.dropped = {unit for unit in self.model.dropped if unit[0] != path}
        for unit in list(self.model.records):
            if (unit[0].startswith(path + "/") or unit[0] == f"{path}[]") and unit[1].startswith(scope):
                del self.model.records[unit]
        step = paths(self.case.steps).get(path)
        if step is not None and is_folded(step):
            for unit in list(self.model.records):
                if unit[0] == path and unit[1] != scope:
                    del self.model.records[unit]

    def set_record(self, record: Record, place: Place, kind: str, event: dict[str, Any], saw: dict[Unit, str]) -> None:
        assert place.step is not None
        if kind == "step-started":
            record.status, record.anew = "running", False
            record.loose = False
            if not (self.keeping and place.step.body and record.definition):  # else a later plan finds the edit again
                record.definition = place.step.definition()
        elif kind in {"step-completed", "step-inherited"}:
            record.status, record.hands = "completed", event.get("outputs") or {}
            record.saw = saw.get(place.unit, record.saw)
            # What a fork shares is as open as it was: of what a person called complete nobody knows what it saw.
            record.loose = record.loose and kind == "step-inherited" and place.step.kind == "run" and not record.saw
            record.failures, record.cut = 0, False
            if event.get("failed") or event.get("skipped"):
                record.status = "failed" if event.get("failed") else "skipped"
        elif kind == "step-failed":
            record.status, record.hands = "failed", {}
            if event.get("retry_at") is not None:
                record.failures += 1
                record.status = "pending"
            else:
                record.failures, record.cut = 0, False
        elif kind == "step-interrupted":
            record.status, record.cut = "interrupted", True
        elif kind == "step-skipped":
            record.status, record.loose = "skipped", False
            record.definition = place.step.definition()
        elif kind == "step-invalidated":
            record.status, record.failures, record.cut = "pending", 0, False
        elif kind == "step-marked":
            record.status = event["status"]
            record.failures, record.cut, record.anew = 0, False, event["status"] != "completed"
            if event["status"] == "completed":
                record.hands, record.saw, record.loose = {}, "", True
        elif kind == "item-dropped":
            record.status = "skipped"


def all_steps(steps: list[Step]) -> list[Step]:
    found = []
    for step in steps:
        found += [step, *all_steps(step.body)]
    return found


def run_case(
    seed: int, directory: Path, *, keep: bool = False, log: bool = False, env: dict[str, str] | None = None
) -> Outcome:
    """One case from its seed; its directory stays if something was wrong."""
    root = directory / f"case-{seed}"
    if root.exists():
        shutil.rmtree(root)
    root.mkdir(parents=True)
    outcome = Harness(seed, root, env=env, log=log).run()
    if not outcome.violations and not keep:
        shutil.rmtree(root)
    return outcome
