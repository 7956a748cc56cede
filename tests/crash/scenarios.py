"""The fault scenarios: what users meet, in short, and why some cannot be tested here.

Which test proves which is said by the tests themselves, with `@pytest.mark.scenario`; the page
docs/reference/fault-scenarios.md is generated from both, and test_scenarios.py fails when they disagree.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import msgspec

ROOT = Path(__file__).parent.parent.parent
GROUPS = {
    "A": "Process death",
    "B": "Power loss",
    "C": "Space and limits",
    "D": "Errors of the disk",
    "E": "Corruption",
    "F": "Concurrency and locks",
    "G": "Signals",
    "H": "Child processes",
    "V": "Output and volume",
    "J": "Malicious and broken inputs",
    "K": "Time",
    "L": "Versions and edited pipelines",
    "M": "Environment and moves",
    "N": "Remote stores",
    "O": "Dashboard",
}
# Proved by the contract that every store keeps, which cannot carry our marks: plug-in authors run it too.
IN_THE_STORE_CONTRACT = {
    "A16": "test_a_forked_child_cannot_write_and_does_not_keep_the_run",
    "F12": "test_an_owned_run_is_busy_and_readers_do_not_mind",
}


class Scenario(msgspec.Struct, frozen=True):
    """One of them; with a `reason` there is no test, with a `note` there is more to say.

    `partly`: the tests prove that nothing is lost, and the note says which part of what one might expect rerail does not do.
    """

    id: str
    words: str
    reason: str = ""
    note: str = ""
    partly: bool = False


SCENARIOS = (
    Scenario("A1", "Kill -9 before every call that changes state; resume equals never killed"),
    Scenario("A2", "Kill -9 half-way through every write; the torn tail is dropped and said"),
    Scenario("A3", "Kill between artifact being in place and its journal record"),
    Scenario("A4", "Kill after the journal sync, before anybody was told: the step counts as done"),
    Scenario("A5", "Kill between temporary file and rename; leftovers are ignored, removed, bounded"),
    Scenario("A6", "Kill while the run is being created"),
    Scenario("A7", "Kill during rotation of history, prune, delete, garbage collection"),
    Scenario("A8", "Kill during recovery itself, depth 2"),
    Scenario("A9", "Kill during migration of an old format", reason="there is one format so far"),
    Scenario("A10", "Kill in each phase: in a step, back-off, parallel group, map item, clean-up, last hooks"),
    Scenario("A11", "OOM kill of rerail alone: like kill -9, and its step does not survive it"),
    Scenario("A12", "OOM kill of the step alone: failed by SIGKILL with a hint at memory, retried, saved"),
    Scenario(
        "A13",
        "A hundred kills in a row; progress is monotone; a poison step",
        note="progress is proven; a step that kills its runner each time is repeated for ever, as nothing says how often is too often",
        partly=True,
    ),
    Scenario("A14", "Kill, resume on unsynced records, then a power cut"),
    Scenario("A15", "SIGSEGV, os._exit, sys.exit, RecursionError, MemoryError in a step"),
    Scenario("A16", "Fork in library mode: the child neither writes nor keeps the lock"),
    Scenario("B1", "Power cut: all unsynced data lost, after every operation"),
    Scenario("B2", "Any subset of unsynced operations survives, in any order"),
    Scenario("B3", "Torn records: one byte, sectors, zeros, garbage, missing middle"),
    Scenario("B4", "The directory entry of a new journal or artifact is lost"),
    Scenario("B5", "Parent directories (.rerail, runs, run) are lost"),
    Scenario("B6", "Checkpoint.json is empty or missing after the cut: rebuilt from the journal"),
    Scenario("B7", "Older snapshot with newer journal, and the other way round"),
    Scenario(
        "B8",
        'A disk that lies about syncs: never a wrong "complete"',
        note="a disk that lies about syncs is outside of what can be promised; that it is noticed is proven",
    ),
    Scenario("B9", "Old segment removed before the new one is durable"),
    Scenario("B10", "Power cut while ENOSPC or EIO is being handled"),
    Scenario("B11", "Group commit cut inside: a prefix or nothing, none of it acknowledged"),
    Scenario("B12", "Artifact content lost although its record survived"),
    Scenario("B13", "SQLite store under power cuts", reason="with the remote stores"),
    Scenario("B14", "Other file systems and mount options: btrfs, noauto_da_alloc, data=writeback"),
    Scenario("B15", "Nightly power cuts of a virtual machine", reason="needs the nightly QEMU job"),
    Scenario("C1", "ENOSPC at every state call: stop with a message, nothing unrecorded acknowledged"),
    Scenario("C2", "Short write before ENOSPC: no half record"),
    Scenario("C3", "No inodes left"),
    Scenario("C4", "The step fills the disk itself; the reserve takes the record of the failure"),
    Scenario("C5", "EDQUOT and EFBIG"),
    Scenario("C6", "EMFILE; no descriptor leaks over 2 000 steps (10 000 take too long for every commit)"),
    Scenario(
        "C7",
        "Fork fails with EAGAIN or ENOMEM: could not start, retriable",
        note="recorded as an attempt that could not start, and worth a retry",
    ),
    Scenario("C8", "/tmp full or missing while the state directory is fine"),
    Scenario("C9", "Names that are too long: step ids, map keys"),
    Scenario(
        "C10",
        "Thousands of steps, a million records, 100 MB of values: bounded, limits named",
        note="load times are measured in bench/, not asserted",
    ),
    Scenario("D1", "EIO on the journal sync: never retried on that file, one new segment, else exit 6"),
    Scenario("D2", 'Real writeback error, then a second sync that "succeeds"'),
    Scenario("D3", "EIO while the snapshot is saved: a warning, the run goes on"),
    Scenario("D4", "EIO on the sync of a directory"),
    Scenario("D5", "EIO while reading at resume: refused, not started over"),
    Scenario("D6", "An error that shows at close() only"),
    Scenario("D7", "EINTR and EAGAIN anywhere are repeated"),
    Scenario("D8", "The file system becomes read-only mid-run"),
    Scenario("D9", "ESTALE, ENOTCONN, ECONNABORTED (NFS, FUSE)"),
    Scenario("D10", "A hung disk: Ctrl-C still gets through, a watchdog speaks up"),
    Scenario("D11", "Every error once and for good"),
    Scenario("D12", "The log of a step cannot be written: the result counts, the log says it is cut"),
    Scenario("E1", "Each byte of checkpoint.json flipped: rebuilt, said, bad file kept"),
    Scenario("E2", "Each byte of the journal flipped: torn tail or refused with its place"),
    Scenario("E3", "Every truncation length"),
    Scenario("E4", "Zeroed pages, doubled blocks, swapped records, records of another run"),
    Scenario("E5", "Checkpoint and journal both bad: history; all bad: refused"),
    Scenario("E6", "Artifact missing, truncated, altered, replaced by directory or link, touched"),
    Scenario(
        "E7",
        "Artifact or copy changes between proof and use",
        note="a program that opens the file after the audit is its own reader",
    ),
    Scenario("E8", "Copies and lists the journal does not know, and the other way round"),
    Scenario("E9", "BOM, CRLF, added newline, re-indented JSON"),
    Scenario("E10", "Checksums hold but the content is impossible"),
    Scenario("E11", "Duplicate keys, NaN, huge integers, deep nesting, lone surrogates"),
    Scenario("E12", "Values JSON would alter: sets, tuples, integer keys, datetimes, bytes"),
    Scenario("E13", "Empty files, FIFO, device, directory where a state file should be"),
    Scenario("F1", "Eight resume one run: one winner, the others exit 4 naming who"),
    Scenario("F2", "Run, resume, stop, delete and prune at once: a live run is never removed"),
    Scenario("F3", "The owner is killed: free at once, nothing to remove"),
    Scenario("F4", "The owner is stopped: refused; ended by force; what it still writes does not count"),
    Scenario("F5", "An orphan does not hold the lock: descriptors are closed on exec"),
    Scenario("F6", "The pid of a dead owner belongs to a stranger now"),
    Scenario("F7", "A zombie owner is dead"),
    Scenario("F8", "After a reboot the owner is dead"),
    Scenario(
        "F9",
        "An owner on another host, clocks apart",
        note="who resumes or deletes is decided by the lock; `list` may call an owner alive that is on another machine",
    ),
    Scenario(
        "F10",
        "No locks on this file system: noticed and said",
        note="without locks there is a refusal, not a lease",
        partly=True,
    ),
    Scenario("F11", "The lock file is removed or replaced during a run"),
    Scenario("F12", "Two threads of one process want the same run"),
    Scenario("F13", "One id created twice at the same time"),
    Scenario("F14", "Container restarted: same pid 1, same host, another life"),
    Scenario("F15", "Reading while an owner writes: always whole"),
    Scenario("F16", "Sixty-four steps end together: one order, no record lost"),
    Scenario("G1", "One SIGINT, SIGTERM or SIGHUP: steps end, interrupted is saved, exit 130/143/129, hint"),
    Scenario("G2", "Second signal kills at once, the third leaves at once"),
    Scenario("G3", "A signal during a save never tears it"),
    Scenario("G4", "SIGTERM, then SIGKILL some seconds later (docker, k8s, CI)"),
    Scenario("G5", "Terminal closed, ssh drop: stops or (nohup) goes on; printing never raises"),
    Scenario("G6", "Stdout closed, full, or read by nobody"),
    Scenario("G7", "Ctrl-Z and fg: steps stop too, time limits do not run on"),
    Scenario("G8", "Library mode: handlers of the program are restored, other signals untouched"),
    Scenario("G9", "A signal between fork and exec: no child without an owner"),
    Scenario("G10", "Rerail as PID 1 of a container"),
    Scenario("G11", "Ctrl-C reaches the step exactly once"),
    Scenario("G12", "Library in a thread that is not the main one"),
    Scenario("H1", "Rerail dies: the whole tree of its steps dies"),
    Scenario("H2", "Resume finds the old step alive: ended, never two copies"),
    Scenario("H3", "An orphan that would have finished is ended and the step runs again"),
    Scenario("H4", "A step that ignores SIGTERM is killed after the grace, wherever it hides"),
    Scenario("H5", "A background grandchild keeps the output open: nobody waits for it"),
    Scenario("H6", "Thousands of quick steps leave no zombie"),
    Scenario("H7", "A step kills its parent: like any crash"),
    Scenario("H8", "Exit codes, signals and pipelines are recorded exactly"),
    Scenario("H9", "A time limit that fires while the step ends: one outcome"),
    Scenario("H10", "A step reads stdin: end of file"),
    Scenario("H11", "Could not start: no such command, not executable, cwd gone, arguments too long"),
    Scenario(
        "H12",
        "What a cut-off step left behind is cleaned up before it runs again",
        note="`on_failure` is for failures: a step that was cut off has none before it runs again",
        partly=True,
    ),
    Scenario("V1", "Output without end: constant memory, log capped with a mark"),
    Scenario("V2", "Binary, escape sequences, endless lines: kept raw, shown harmless"),
    Scenario("V3", "Two streams and parallel steps: in order, labelled, nothing lost"),
    Scenario("V4", "Captured values: limit, trailing newline, NUL, not UTF-8"),
    Scenario("V5", "Huge, sparse, many, unreadable or changing artifacts"),
    Scenario(
        "V6",
        "File names with newlines, quotes, bytes that are no text, look-alikes",
        note="in artifacts any name; an item of a map must be text, and one that is not fails the map by name",
    ),
    Scenario("J1", "Run ids that are paths, too long, or steer"),
    Scenario("J2", "Artifact paths that leave the project"),
    Scenario(
        "J3",
        "Links planted in the state directory; a state directory of somebody else",
        note="a state directory that belongs to somebody else is used: in containers that is the rule",
        partly=True,
    ),
    Scenario("J4", "Hard links to a victim in place of state files"),
    Scenario("J5", "Delete and prune do not follow links out of the tree"),
    Scenario("J6", "YAML bombs, depth, aliases, tags, duplicate keys, odd scalars"),
    Scenario("J7", "Values never become shell code, never expanded twice"),
    Scenario("J8", "Expressions: no escape, no exponent bombs, no endless patterns"),
    Scenario("J9", "Secrets reach no file, log, event or screen"),
    Scenario("J10", "No pickle, marshal, eval; loading executes nothing"),
    Scenario("J11", "Archives that escape on restore", reason="with export and import"),
    Scenario("J12", "Pipeline file is a FIFO, device, directory, huge, not UTF-8, has a BOM"),
    Scenario("J13", "Pipelines inside pipelines: cycles, remote ones"),
    Scenario("J14", "Environment cannot redirect state or outputs silently"),
    Scenario(
        "J15",
        "Crafted checkpoint or frozen pipeline",
        note="integrity, not authenticity: who may write a whole run directory decides what it says",
    ),
    Scenario("J16", "Markup, escape sequences and log commands in names and output"),
    Scenario("K1", "Wall clock jumps during a run: durations and order hold"),
    Scenario("K2", "Clock before 1980 or far ahead"),
    Scenario("K3", "History by seq; retention never takes runs from the future"),
    Scenario("K4", "Ids of the same moment are distinct"),
    Scenario(
        "K5",
        "Suspend for hours in a step with a time limit",
        reason="needs a machine that is put to sleep; what then holds is documented at `timeout`",
    ),
    Scenario("K6", "Times of files are never proof"),
    Scenario("L1", "Older formats are read", reason="there is one format so far"),
    Scenario("L2", "A newer format is refused by name and left alone"),
    Scenario("L3", "An unknown kind of record"),
    Scenario("L4", "Two versions in turn on one run", reason="there is one format so far"),
    Scenario("L5", "Pipeline edited between crash and resume: changed, removed, inserted, comment only"),
    Scenario(
        "L6",
        "A script or module a step uses has changed",
        note="declared `inputs` decide; nothing is said about files that are not declared",
        partly=True,
    ),
    Scenario("L7", "Declared inputs changed since the step ran"),
    Scenario("L8", "Pipeline file gone at resume: the frozen copy, and said"),
    Scenario("L9", "Map over a list that changed: items by key, not by place"),
    Scenario("L10", "Params given again and in conflict"),
    Scenario(
        "M1", "Project moved; state copied", note="a copy goes its own way; nobody is asked which lives on", partly=True
    ),
    Scenario("M2", "Resume from another directory or through a link"),
    Scenario("M3", "Other user, umask, lost permission"),
    Scenario("M4", "Directory deleted under us, no HOME, no tty, LANG=C"),
    Scenario(
        "M5",
        "State on tmpfs or in a container layer: warned",
        note="`rerail doctor` says so, `run` does not",
        partly=True,
    ),
    Scenario("M6", "State on another file system than the artifacts"),
    Scenario("M7", "Case-insensitive file systems, Windows, macOS", reason="needs Windows and macOS"),
    Scenario("M8", "Sync tools leave conflict copies", note="sharing violations are Windows'"),
    Scenario("M9", "Git clean or checkout removes artifacts"),
    Scenario(
        "M10",
        "State directory removed while running: stop",
        note="the run stops and says so; nothing is dumped elsewhere",
        partly=True,
    ),
    Scenario("N1", "SQLite store: busy, full, replaced, damaged", reason="with the remote stores"),
    Scenario("N2", "Postgres: cut connections, lagging replicas, poolers", reason="with the remote stores"),
    Scenario("N3", "Postgres restarted again and again under load", reason="with the remote stores"),
    Scenario("N4", "S3: lost responses, throttling, conditional writes", reason="with the remote stores"),
    Scenario("N5", "Network gone for a minute or for ever", reason="with the remote stores"),
    Scenario("N6", "Two stores disagree", reason="with the remote stores"),
    Scenario("O1", "Host header not on the list", reason="with the dashboard"),
    Scenario("O2", "Cross-site requests that change state", reason="with the dashboard"),
    Scenario("O3", "WebSocket and SSE of a foreign origin", reason="with the dashboard"),
    Scenario("O4", "Token, cookie, loopback by default", reason="with the dashboard"),
    Scenario("O5", "Markup from steps in the page", reason="with the dashboard"),
    Scenario("O6", "Paths that leave the run directory", reason="with the dashboard"),
    Scenario("O7", "Huge logs, many connections, slow clients", reason="with the dashboard"),
    Scenario("O8", "Frames, sniffing, caches", reason="with the dashboard"),
    Scenario("O9", "Dashboard dies or its port is taken", reason="with the dashboard"),
    Scenario("O10", "Header injection by names", reason="with the dashboard"),
    Scenario("O11", "IPv6, proxies, published ports", reason="with the dashboard"),
    Scenario("O12", "One button raced twice or against the command line", reason="with the dashboard"),
)


def proofs() -> dict[str, list[str]]:
    """Scenario → the tests that say they prove it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                for marked in _marks(node):
                    found[marked].append(f"{path.relative_to(ROOT)}::{node.name}")
    for scenario, name in IN_THE_STORE_CONTRACT.items():
        found[scenario].append(f"src/rerail/testing/shared_store_contract.py::SharedStoreContract::{name}")
    return found


def _marks(function: ast.FunctionDef) -> list[str]:
    found = []
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.scenario":
            found += [str(argument.value) for argument in decorator.args if isinstance(argument, ast.Constant)]
    return found


def page() -> str:
    """docs/reference/fault-scenarios.md."""
    proved = proofs()
    tested = sum(not scenario.reason for scenario in SCENARIOS)
    partly = sum(scenario.partly for scenario in SCENARIOS)
    intro = (
        f"# Fault scenarios\n\n{len(SCENARIOS)} things that go wrong for people who run pipelines. {tested - partly} of them"
        f" are proved by the tests named here, which run with every commit; {partly} are proved in part, and say which part is"
        f" not done; the other {len(SCENARIOS) - tested} say why there is no test (yet).\n"
    )
    parts = [intro]
    for letter, title in GROUPS.items():
        parts.append(f"\n## {letter}. {title}\n\n| | scenario | proved by |\n|---|---|---|\n")
        for scenario in SCENARIOS:
            if scenario.id[0] == letter:
                names = "<br>".join(f"`{_short(test)}`" for test in proved[scenario.id])
                how = "in part: " if scenario.partly else ""
                more = f"<br>({how}{scenario.note})" if scenario.note else ""
                parts.append(f"| {scenario.id} | {scenario.words} | {scenario.reason or names + more} |\n")
    return "".join(parts)


def _short(test: str) -> str:
    return test.removeprefix("tests/").removeprefix("src/rerail/")
