"""Runs in a process of its own, with the shim preloaded: real runs that are really killed, one fork each.

Reads one JSON order per line on stdin, answers one JSON line each. An order names a fault (mode, at, errno) and which
command meets it; then the run is driven to its end by further, undisturbed lives. Nothing here judges: the tests do.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

MODES = {"off": 0, "kill": 1, "torn": 2, "short": 3, "errno": 4, "errno-forever": 5, "signal": 6, "cut": 7, "hang": 8}

PIPELINE = """\
name: reference
max_crashes: 1000
env: {LEDGER: "%(ledger)s"}
steps:
  - id: seed
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      echo "$RERAIL_STEP says something"
      echo n=7 >> "$RERAIL_OUTPUT"
      mkdir -p tree; echo leaf > tree/leaf
    artifacts: [tree]
  - id: left
    needs: [seed]
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      echo '{"side": "left", "list": [1, 2.5, null]}' >> "$RERAIL_OUTPUT"
      echo left > left.txt
    artifacts: [left.txt]
  - id: right
    needs: [seed]
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      echo side=right >> "$RERAIL_OUTPUT"
      echo right > right.txt
  - id: flaky
    needs: [left]
    retry: {attempts: 2, delay: 0.01}
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      test -e flag || { touch flag; echo not yet >&2; exit 1; }
  - id: breaks
    needs: [right]
    allow_failure: true
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      exit 3
  - id: pairs
    needs: [flaky, breaks]
    map: {over: [a, bad], parallel: 2, max_failures: 1}
    steps:
      - id: one
        run: |
          echo "$RERAIL_STEP[${{ item }}] start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
          echo "from=${{ item }}" >> "$RERAIL_OUTPUT"
      - id: two
        run: |
          echo "$RERAIL_STEP[${{ item }}] start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
          test ${{ item }} != bad
          echo "made=${{ steps.one.outputs.from }}" >> "$RERAIL_OUTPUT"
  - id: plain
    map: {over: {lines: list.txt}, parallel: 3}
    steps:
      - run: |
          echo "$RERAIL_STEP[${{ item }}] start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
          echo "item ${{ item }}"
          echo ${{ item }} > "made-${{ item }}.txt"
          echo "length=${#RERAIL_ITEM}" >> "$RERAIL_OUTPUT"
        artifacts: ["made-${{ item }}.txt"]
  - id: polish
    loop: {max_iterations: 3, until: steps.check.outputs.score >= 2}
    steps:
      - id: check
        run: |
          echo "$RERAIL_STEP[${{ loop.iteration }}] start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
          echo "score=${{ loop.iteration }}" >> "$RERAIL_OUTPUT"
  - id: reduce
    inputs: [left.txt, tree]
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      cat left.txt right.txt tree/leaf > reduced.txt
      cat ${{ steps.pairs.outputs.results_file }} ${{ steps.plain.outputs.results_file }} >> reduced.txt
      echo ${{ steps.polish.outputs }} ${{ steps.pairs.outputs.failed }} >> reduced.txt
      echo total=14 >> "$RERAIL_OUTPUT"
    artifacts: [reduced.txt]
  - id: note
    write: {path: note.txt, content: "done\\n"}
"""


ARTIFACTS = """\
name: artifacts
env: {LEDGER: "%(ledger)s"}
steps:
  - id: one
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      mkdir -p a; echo first > a/one.txt
    artifacts: [a/one.txt]
  - id: tree
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      mkdir -p t/y t/empty; echo x > t/x; echo z > t/y/z; ln -sfn x t/link
    artifacts: [t]
  - id: two
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      cat a/one.txt t/x > two.txt
    inputs: [a/one.txt, t]
    artifacts: [{path: two.txt, keep: false}]
  - id: end
    run: |
      test -e "$LEDGER.ok"
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      cat two.txt t/y/z > end.txt
    artifacts: [end.txt]
"""
CHAIN = """\
name: chain
env: {LEDGER: "%(ledger)s"}
steps:
  - {id: a, run: 'echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"; echo n=1 >> "$RERAIL_OUTPUT"'}
  - {id: b, run: 'echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"; echo ${{ steps.a.outputs.n }} > b.txt'}
  - {id: c, run: 'echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"; echo c > c.txt'}
  - id: d
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      cat b.txt c.txt > d.txt
    artifacts: [d.txt]
"""
POWER = """\
name: power
env: {LEDGER: "%(ledger)s"}
steps:
  - {id: a, run: 'echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"; echo n=1 >> "$RERAIL_OUTPUT"'}
  - id: b
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      mkdir -p out; echo ${{ steps.a.outputs.n }} > out/b.txt
    artifacts: [out/b.txt]
  - id: c
    run: |
      echo "$RERAIL_STEP start $RERAIL_ATTEMPT $RERAIL_STEP_KEY" >> "$LEDGER"
      cat out/b.txt out/b.txt > c.txt
    artifacts: [{path: c.txt, keep: false}]
"""
CHAOS = """\
name: chaos
max_crashes: 1000
env: {LEDGER: "%(ledger)s"}
steps:
  - id: m
    map: {over: {lines: list.txt}, parallel: 8, max_failures: 40}
    steps:
      - id: one
        run: |
          sleep 60.0625 &
          echo "one ${{ item }} $RERAIL_ATTEMPT" >> "$LEDGER"
          echo "n=${{ item }}" >> "$RERAIL_OUTPUT"
      - id: two
        retry: {attempts: 2, delay: 0.01}
        run: |
          echo "two ${{ item }} $RERAIL_ATTEMPT" >> "$LEDGER"
          test $(( ${{ item }} %% 17 )) != 3
          echo "square=$(( ${{ item }} * ${{ item }} ))" >> "$RERAIL_OUTPUT"
  - id: reduce
    run: |
      echo "reduce 0 $RERAIL_ATTEMPT" >> "$LEDGER"
      cp ${{ steps.m.outputs.results_file }} results.jsonl
"""
PIPELINES = {"reference": PIPELINE, "artifacts": ARTIFACTS, "chain": CHAIN, "power": POWER}
RESULTS = {
    "reference": ("left.txt", "right.txt", "tree/leaf", "made-x.txt", "made-y y.txt", "reduced.txt", "note.txt"),
    "chain": ("d.txt",),
    "power": ("out/b.txt", "c.txt"),
    "artifacts": ("a/one.txt", "t/x", "t/y/z", "t/link", "two.txt", "end.txt"),
}
EDITED = "edited by hand\n"


class Place:
    """A scratch project with its ledgers beside it, outside the state directory."""

    def __init__(self, top: str, pipeline: str = PIPELINE, inside: str = "") -> None:
        shared = "/dev/shm"
        self.root = tempfile.mkdtemp(prefix="rerail-lab-", dir=shared if os.access(shared, os.W_OK) else None)
        self.project = os.path.join(inside or self.root, "project")
        self.state = os.path.join(self.project, ".rerail")
        self.ledger = os.path.join(self.root, "ledger")
        self.acks = os.path.join(self.root, "acks")
        self.messages = os.path.join(self.root, "messages")
        os.mkdir(self.project)
        with open(os.path.join(self.project, "pipeline.yaml"), "w", encoding="utf-8") as file:
            file.write(top + pipeline % {"ledger": self.ledger})
        with open(os.path.join(self.project, "list.txt"), "w", encoding="utf-8") as file:
            file.write("x\ny y\n")
        for path in (self.ledger, self.acks, self.messages):
            open(path, "w", encoding="utf-8").close()

    def text(self, path: str) -> str:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def remove(self) -> None:
        shutil.rmtree(self.root)


def live(place: Place, arguments: list[str], order: dict[str, Any], *, impatient: bool = False) -> dict[str, Any]:
    """One life: fork, arm the shim, run a command; how it ended and how many points it passed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _be_the_child(place, arguments, order, write)
    os.close(write)
    status = _interrupted(place, child) if impatient else os.waitpid(child, 0)[1]
    counted = os.read(read, 100)
    os.close(read)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "points": int(counted) if counted else None,
        "acked": _acked(place),  # so far
        "ledger": len(place.text(place.ledger).splitlines()),
    }


def _interrupted(place: Place, child: int) -> int:
    """Wait for a process, with Ctrl-C again and again once it said that the disk does not answer."""
    deadline = time.monotonic() + 20
    while True:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if "does not answer" in place.text(place.messages):
            os.kill(child, signal.SIGINT)
        time.sleep(0.02)


def _be_the_child(
    place: Place, arguments: list[str], order: dict[str, Any], write: int, *, tell_modules: bool = False
) -> None:
    code = 99
    try:
        os.setsid()
        os.chdir(place.project)
        out = os.open(place.acks, os.O_WRONLY | os.O_APPEND)
        err = os.open(place.messages, os.O_WRONLY | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        from rerail.cli.main import call

        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND) if order.get("log") else -1
        armed = place.project if order.get("everywhere") else place.state
        shim.shim_arm(armed.encode(), MODES[order["mode"]], order.get("at", 0), order.get("number", 0), log)
        code = call(arguments)
        counted = shim.shim_count()
        shim.shim_arm(b"/nowhere", 0, 0, 0, -1)
        told = " ".join(name for name in sys.modules if not name.startswith("__")) if tell_modules else str(counted)
        os.write(write, told.encode())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


QUIET = {"mode": "off"}
RUN = ["run", "pipeline.yaml", "--id", "r", "--resume", "--parallel", "2", "--json"]

KEEP = ["resume", "r", "--keep-changes", "--parallel", "2", "--json"]


def experiment(order: dict[str, Any]) -> dict[str, Any]:
    """Meet the fault, then be resumed until the run is completed; everything an oracle needs."""
    kind = order.get("pipeline", "reference")
    place = Place(order.get("top", ""), PIPELINES[kind])
    try:
        lives = []
        if order.get("damage"):
            lives.append(live(place, RUN, QUIET))
            damage(place)
        if kind == "artifacts":
            open(place.ledger + ".ok", "w", encoding="utf-8").close()
        if order.get("before"):
            lives.append(live(place, RUN, order["before"]))
        command = KEEP if order.get("keep") else RUN
        lives.append(live(place, command, order))
        messages = place.text(place.messages)
        for _ in range(4):
            lives.append(live(place, command, QUIET))
            if lives[-1]["code"] == 0:
                break
        final = _final(place)
        files = {}
        for name in RESULTS[kind]:
            path = os.path.join(place.project, name)
            files[name] = place.text(path) if os.path.exists(path) else None
        return {
            "order": order,
            "lives": lives,
            "messages": messages,
            "later_messages": place.text(place.messages)[len(messages) :],
            "ledger": place.text(place.ledger).splitlines(),
            "outputs": {step["id"]: step["outputs"] for step in final.get("steps", []) if step.get("item") is None},
            "statuses": {step["id"]: step["status"] for step in final.get("steps", []) if step.get("item") is None},
            "dead": [
                f"{step['id']}[{step['item']}]"
                for step in final.get("steps", [])
                if step["status"] == "failed" and step.get("item")
            ],
            "status": final.get("status"),
            "files": files,
            "aside": [place.text(path) for path in everything(os.path.join(place.state, "runs", "r", "quarantine"))],
            "strays": [
                path for path in everything(place.project) if path.endswith(".rerail-tmp") and not _tolerated(path)
            ],
        }
    finally:
        place.remove()


def chaos(order: dict[str, Any]) -> dict[str, Any]:
    """Struck at random moments, and resumed each time, until it is done."""
    import random

    place, dice = Place("", CHAOS), random.Random(order["seed"])
    with open(os.path.join(place.project, "list.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{number}\n" for number in range(order["items"]))
    blows: list[dict[str, Any]] = []
    try:
        while True:
            last = len(blows) >= order["blows"]
            grown = _lines(place) + dice.randrange(1, 5)
            child = _begin(place)
            while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and (last or not _is_far(place, child, grown)):
                time.sleep(0.001)
            if ended[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                break
            blow = dice.choices(["kill", "terminate", "freeze"], [6, 2, 2])[0]
            code, refused = _strike(place, child, blow)
            left = _gone(place)
            told = place.text(place.acks)
            blows.append(
                {"blow": blow, "code": code, "refused": refused, "ledger": _lines(place), "told": len(told), "left": left}
            )
            if code == 0 or (blow == "freeze" and refused == 0):  # it was at its end when it was struck
                code = code if blow == "terminate" else refused
                break
        told = place.text(place.acks)
        live(place, ["dlq", "list", "r", "--json"], QUIET)
        return {
            "order": order,
            "blows": blows,
            "code": code,
            "told": told,
            "dead": json.loads(place.text(place.acks)[len(told) :]),
            "ledger": place.text(place.ledger),
            "results": place.text(os.path.join(place.project, "results.jsonl")),
            "messages": place.text(place.messages)[-2000:],
            "strays": [
                path for path in everything(place.project) if path.endswith(".rerail-tmp") and not _tolerated(path)
            ],
        }
    finally:
        place.remove()


def _is_far(place: Place, child: int, grown: int) -> bool:
    """Whether a life has come so far. What was just being started when the last one died may write a line, too."""
    if _lines(place) < grown:
        return False
    with open(os.path.join(place.state, "runs", "r", "lock"), encoding="utf-8") as file:
        return f'"pid":{child},' in file.read()


def _lines(place: Place) -> int:
    with open(place.ledger, "rb") as file:
        return file.read().count(b"\n")


def _begin(place: Place) -> int:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _be_the_child(place, [*RUN, "-q"], QUIET, write)
    os.close(read)
    os.close(write)
    return child


def _strike(place: Place, child: int, blow: str) -> tuple[int, int]:
    """End a life one way or another; its exit code, and that of somebody who wanted the run meanwhile."""
    refused = 0
    if blow == "freeze":
        # Whoever is stopped still owns the run: nobody else gets it, and nothing is lost if it never goes on.
        os.kill(child, signal.SIGSTOP)
        refused = int(live(place, RUN, QUIET)["code"])
    os.kill(child, signal.SIGTERM if blow == "terminate" else signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), refused


def _gone(place: Place) -> list[str]:
    """A census: what of the run is still alive when everything had time to end."""
    deadline = time.monotonic() + 20
    while (left := _census(place)) and time.monotonic() < deadline:
        time.sleep(0.002)
    return left


def _census(place: Place) -> list[str]:
    """The commands of all processes whose environment names our ledger: everything that any life of this run started."""
    wanted = f"LEDGER={place.ledger}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    with open(f"/proc/{entry}/cmdline", "rb") as command:
                        found.append(command.read().replace(b"\0", b" ").decode())
    return found


def deletion(order: dict[str, Any]) -> dict[str, Any]:
    """A run that failed at its end is deleted, which is cut off; then somebody resumes what they see."""
    place = Place("", ARTIFACTS)
    try:
        before = live(place, RUN, QUIET)
        met = live(place, ["delete", "r", "--yes"], order)
        there = os.path.isdir(os.path.join(place.state, "runs", "r"))
        open(place.ledger + ".ok", "w", encoding="utf-8").close()
        after = live(place, ["resume", "--json"], QUIET)
        live(place, ["run", "pipeline.yaml", "--id", "other"], QUIET)  # whoever comes next tidies up
        left = sorted(os.listdir(os.path.join(place.state, "runs")))
        ledger = place.text(place.ledger).splitlines()
        lives = [before, met, after]
        return {"order": order, "lives": lives, "there": there, "left": left, "ledger": ledger}
    finally:
        place.remove()


def failure(order: dict[str, Any]) -> dict[str, Any]:
    """A step fails and the process is killed; the cause is mended, files are lost, and the run is resumed once."""
    place = Place("", order["text"])
    try:
        met = live(place, RUN, order)
        segments = [path for path in everything(place.state) if os.path.basename(path).startswith("journal-")]
        found: dict[str, Any] = {"order": order, "journal": "".join(map(place.text, segments)), "lives": [met]}
        if not order["resumed"]:
            return found
        open(place.ledger + ".ok", "w", encoding="utf-8").close()
        for name in order["lost"]:
            os.unlink(os.path.join(place.project, name))
        found["lives"].append(live(place, RUN, QUIET))
        return {**found, "ledger": place.text(place.ledger).split(), "messages": place.text(place.messages)}
    finally:
        place.remove()


def power_cut(order: dict[str, Any]) -> dict[str, Any]:
    """The power fails at one call; the file system comes back with what had reached the disk, and the run is resumed."""
    from tests.crash.volumes import Volume

    kind = order["volume"]
    fault = {**order, "mode": "kill" if kind == "btrfs" else "cut"}
    with Volume(kind) as volume:
        place = Place("", POWER, inside=volume.path)
        volume.sync()
        try:
            met = live(place, RUN, fault)
            lives = [met]
            if met["code"] == -signal.SIGKILL:
                volume.cut_power()
            while lives[-1]["code"] != 0 and len(lives) < 4:
                lives.append(live(place, RUN, QUIET))
            return {
                "order": order,
                "lives": lives,
                "messages": place.text(place.messages),
                "ledger": place.text(place.ledger).splitlines(),
                "files": {name: place.text(os.path.join(place.project, name)) for name in RESULTS["power"]},
            }
        finally:
            place.remove()


def hanging(order: dict[str, Any]) -> dict[str, Any]:
    """The disk stops answering; once that is said, somebody presses Ctrl-C until the process leaves."""
    import rerail.engine.stall_monitor as watch

    place = Place("", CHAIN)
    watch.SLOW_SECONDS, watch.CHECK_SECONDS = 1.1, 0.05
    try:
        met = live(place, RUN, order, impatient=True)
        messages = place.text(place.messages)
        return {"order": order, "lives": [met, live(place, RUN, QUIET)], "messages": messages}
    finally:
        place.remove()


def damage(place: Place) -> None:
    """What people and disks do to files between two lives."""
    with open(os.path.join(place.project, "a/one.txt"), "w", encoding="utf-8") as file:
        file.write(EDITED)
    shutil.rmtree(os.path.join(place.project, "t/y"))
    os.rmdir(os.path.join(place.project, "t/empty"))
    os.unlink(os.path.join(place.project, "t/link"))
    os.unlink(os.path.join(place.project, "two.txt"))


def everything(directory: str) -> list[str]:
    return [os.path.join(where, name) for where, _, names in os.walk(directory) for name in names]


def _final(place: Place) -> dict[str, Any]:
    """What `show --json` would print, without a process of its own."""
    import msgspec

    from rerail import api
    from rerail.errors import RerailError
    from rerail.stores.directory import DirectoryStore

    try:
        store = DirectoryStore(place.state)
        found: dict[str, Any] = json.loads(msgspec.json.encode(api.checkpoint(store, store.read("r"))))
    except RerailError:
        return {}
    return found


def _tolerated(path: str) -> bool:
    """The index of all runs is tidied up by age, as others may be at it; a checkpoint when the run is driven again."""
    return os.path.basename(path).startswith(("index.jsonl.", "checkpoint.json."))


def _acked(place: Place) -> list[str]:
    """The steps the outside world has been told are done."""
    done = []
    for line in place.text(place.acks).splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut off while it was printed: nobody could read it
        if not isinstance(event, dict):
            continue  # what another command said
        if event.get("event") == "step-completed" or (event.get("event") == "step-failed" and event.get("allowed")):
            done.append(event["step"] if event.get("item") is None else f"{event['step']}[{event['item']}]")
    return done


def _import_what_a_life_imports() -> None:
    """So that no life has to: most of what a short one takes is importing."""
    import importlib

    place = Place("", PIPELINE)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _be_the_child(place, RUN, QUIET, write, tell_modules=True)
    os.close(write)
    with open(read, encoding="utf-8") as told:
        names = told.read().split()
    os.waitpid(child, 0)
    place.remove()
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    assert "rerail.engine.runner" in sys.modules
    gc.freeze()


EXPERIMENTS = {
    "chaos": chaos,
    "deletion": deletion,
    "failure": failure,
    "hanging": hanging,
    "power-cut": power_cut,
}


def main() -> None:
    _import_what_a_life_imports()
    import rerail.engine.recorder
    import rerail.kinds.builtin

    rerail.kinds.builtin._shell = lambda: ("/bin/sh", "-e")  # type: ignore[assignment] # which of the shells that are allowed: the fastest
    rerail.engine.recorder.SNAPSHOT_SHARE = 1e9  # a snapshot after every batch: every point there can be
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for line in sys.stdin:
        order = json.loads(line)
        work = EXPERIMENTS.get(order.get("kind", ""), experiment)
        print(json.dumps(work(order)), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    shim = ctypes.CDLL(os.environ["LAB_SHIM"])
    main()
