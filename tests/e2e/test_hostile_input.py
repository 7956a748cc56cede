"""Hostile pipeline files through the real command: one line each, exit 2, nothing created, little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import RERAIL, Project
from tests.crash.figures import figure

MOST_KILOBYTES = 200_000


@pytest.fixture(autouse=True)
def _counted() -> Iterator[None]:
    yield
    figure("T12", "hostile inputs, each refused by name", 1)


def merge_bomb() -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)]
    return "\n".join(lines)


def laughs() -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    return "\n".join(lines)


FILES = {
    ("merge keys that multiply", "merge keys"): merge_bomb(),
    ("a billion laughs", "aliases expand to more than"): laughs(),
    ("brackets", "nested deeper than 100"): "[" * 40_000,
    ("braces", "nested deeper than 100"): "{a: " * 40_000,
    ("nested blocks", "nested deeper than 100"): "".join(" " * n + "a:\n" for n in range(3000)),
    ("ten megabytes", "at most"): "# " + "x" * 10_000_000,
    ("one long line", "the quote ' is never closed"): "steps: [{run: '" + "x" * 4_000_000,
    ("many keys", "unknown key `k0`"): "\n".join(f"k{n}: 1" for n in range(50_000)),
    ("a recursive alias", "no anchor `a` before this"): "a: &a [*a]\nsteps: []",
    ("python tags", "the tag"): "a: !!python/object/apply:os.system ['touch pwned']",
    ("two documents", "a second document"): "steps: [{run: x}]\n---\nsteps: []",
    ("duplicate keys", "`run` is given twice"): "steps: [{run: x, run: y}]",
    ("a number without end", "more than 18 digits"): "a: " + "9" * 5000,
    ("control characters", ""): "steps: [{run: \x07}]",
    ("a bomb in an expression", "2000 at most"): "steps: [{run: 'echo ${{ " + "(" * 3000 + "1" + ")" * 3000 + " }}'}]",
    ("an escape attempt", "no param `__class__`"): "steps: [{run: 'echo ${{ params.__class__.__mro__ }}'}]",
    ("half an expression", "`${{` has no `}}`"): "steps: [{run: 'echo ${{ 1 + '}]",
    ("many problems", "more problems"): "steps:\n" + "".join(f"  - {{rum: x, id: 'bad id {n}'}}\n" for n in range(2000)),
    ("a circle of five thousand", "dependency cycle"): "steps:\n"
    + "".join(f"  - {{id: s{n}, run: x, needs: [s{(n + 1) % 5000}]}}\n" for n in range(5000)),
    ("latin-1", "not UTF-8"): b"name: caf\xe9".decode("latin-1"),
    ("a list without end", "more than 120000 values"): "steps: [" + "a," * 1_000_000 + "]",
    ("a mapping without end", "more than 120000 values"): "env: {" + ",".join(f"A{n}: 1" for n in range(150_000)) + "}",
    ("expressions without end", "more than 2000 expressions"): "steps: [{run: 'echo " + "${{1}}" * 50_000 + "'}]",
    ("a script without end", "a script with expressions may have"): "steps: [{run: 'echo ${{1}}"
    + "x " * 1_000_000
    + "'}]",
    ("a need that steers the terminal", "unknown step `\\x1b[2J`"): 'steps: [{run: x, needs: ["\\e[2J"]}]',
    ("a long circle", "(8990 more)"): "steps:\n"
    + "".join(f"  - {{id: s{n}, run: x, needs: [s{(n + 1) % 9_000}]}}\n" for n in range(9_000)),
}


# A process begins with the peak of the one that started it, which may be a worker that had a thousand tests before.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def check(project: Project, path: str, *more: str) -> tuple[int, str, int]:
    """Exit code, messages and peak memory of one command."""
    outside = project.root.parent
    measured = [sys.executable, "-c", MEASURE, str(outside / "peak")]
    with open(outside / "messages", "wb") as messages:
        done = subprocess.run(
            [*measured, *RERAIL, "run", path, *more],
            cwd=project.root,
            env=project.env,
            stdout=subprocess.DEVNULL,
            stderr=messages,
        )
    return done.returncode, (outside / "messages").read_text(errors="replace"), int((outside / "peak").read_text())


@pytest.mark.sweep(2)
@pytest.mark.scenario("J6", "J8")
@pytest.mark.parametrize(("name", "words"), FILES)
@pytest.mark.timeout(30)
def test_a_hostile_file_is_refused_cheaply(project: Project, name: str, words: str) -> None:
    path = project.root / "p.yaml"
    path.write_bytes(FILES[name, words].encode("latin-1" if name == "latin-1" else "utf-8"))
    code, messages, peak = check(project, "p.yaml")

    assert code == 2, messages[:500]
    assert "p.yaml:" in messages
    assert words in messages
    assert len(messages) < 50_000
    assert "Traceback" not in messages
    assert "next: " in messages
    assert peak < MOST_KILOBYTES
    assert not (project.root / ".rerail").exists()
    assert not (project.root / "pwned").exists()


@pytest.mark.scenario("J12")
@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "missing", "unreadable name", "memory"])
@pytest.mark.timeout(30)
def test_what_is_no_file_is_refused_at_once(project: Project, kind: str) -> None:
    path = project.root / "p.yaml"
    name = "p.yaml"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "device":
            name = "/dev/zero"
        case "memory":
            name = "/proc/self/mem"
        case "unreadable name":
            name = "x" * 5000
    code, messages, peak = check(project, name)

    assert code == 2
    assert "Traceback" not in messages
    assert peak < MOST_KILOBYTES
    assert not Path(project.root / ".rerail").exists()


PARAMS = (
    "params: {n: {type: integer}, f: {type: number}, b: {type: boolean}, l: {type: list}, c: {choices: [x, y]}, s: ''}\n"
)
TOO_DEEP = "too deep"
ARGUMENTS = {
    "text for a number": (["-p", "n=many"], "the param `n` must be of type integer, not 'many'"),
    "a number beyond all": (["-p", "n=" + "9" * 5000], "the param `n` must be of type integer"),
    "infinity": (["-p", "f=1e999"], "the param `f` must be of type number"),
    "a word for a truth": (
        ["-p", "b=maybe"],
        "the param `b` must be of type boolean (true, yes, on, 1, or false, no, off, 0), not 'maybe'",
    ),
    "half a list": (["-p", "l=[1, 2"], "the param `l` must be of type list"),
    "a list that is too deep": (["-p", "l=" + "[" * 5000 + "]" * 5000], TOO_DEEP),
    "a choice there is not": (["-p", "c=z"], "must be one of x, y, not 'z'"),
    "a param there is not": (["-p", "\x1b[2J=1"], "the pipeline has no param `\\x1b[2J`"),
    "no value": (["-p", "n"], "not NAME=VALUE"),
    "an id that is a path": (["--id", "../../x"], "invalid run id"),
    "an id that is an option": (["--id", "-rf"], "invalid run id"),
    "an id that steers the terminal": (["--id", "a\x1b[2Jb"], "invalid run id"),
    "an id without end": (["--id", "x" * 5000], "invalid run id"),
    "an empty id": (["--id", ""], "invalid run id"),
    "a reserved id": (["--id", "last"], "the name is reserved"),
    "a label without a value": (["--label", "x"], "not NAME=VALUE"),
    "a store there is not": (["--store", "gopher://x"], "gopher"),
    "a step there is not": (["--from", "\x1b[2J"], "the pipeline has no step"),
    "a params file that is a device": (["--params-file", "/dev/zero"], "not a regular file"),
    "a params file that is a list": (["--params-file", "list.yaml"], "params must be a mapping, not a list"),
    "a params file that is a bomb": (["--params-file", "bomb.yaml"], "aliases expand to more than"),
    "no parallelism": (["--parallel", "0"], "--parallel"),
    "a secret that is no name": (["--secret", "A B"], "A B"),
}


@pytest.mark.sweep(2)
@pytest.mark.scenario("J1")
@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.timeout(30)
def test_hostile_arguments_are_refused_cheaply(project: Project, name: str) -> None:
    project.pipeline(PARAMS + "steps: [{id: a, run: 'touch pwned'}]\n", "p.yaml")
    project.pipeline("[1, 2]", "list.yaml")
    project.pipeline(laughs(), "bomb.yaml")
    arguments, words = ARGUMENTS[name]
    code, messages, peak = check(project, "p.yaml", *arguments)

    assert code == 2, messages[:500]
    if words == TOO_DEEP:  # by the parser of JSON, or since Python 3.13 by us
        assert "the param `l` must be of type list" in messages or "is nested deeper than" in messages
        return
    assert words in messages
    assert all(line.isprintable() for line in messages.splitlines())
    assert "next: " in messages
    assert len(messages) < 2000
    assert peak < MOST_KILOBYTES
    assert not (project.root / ".rerail" / "runs").exists()
    assert not (project.root / "pwned").exists()


OUTPUTS = {
    "neither": ("echo 'just text'", "$RERAIL_OUTPUT line 1: neither name=value nor a JSON object: 'just text'"),
    "half an object": ("echo '{\"a\": '", "$RERAIL_OUTPUT line 1: not JSON"),
    "an array": ("echo 'a=1'; echo '[1]'", "$RERAIL_OUTPUT line 2: neither name=value nor a JSON object"),
    "a name of many words": ("echo 'a b=1'", "'a b' cannot be the name of an output"),
    "a name that steers": ("printf '\\033[2J=1\\n'", "cannot be the name of an output"),
    "no name": ("echo '=1'", "'' cannot be the name of an output"),
    "not UTF-8": ("printf 'a=\\377\\n'", "$RERAIL_OUTPUT line 1: not UTF-8"),
    "too much": ("head -c 1500000 /dev/zero | tr '\\0' x", "at most (write a file and output its path)"),
    "too deep": ('python3 -c \'print("{\\"a\\": " + "["*200 + "]"*200 + "}")\'', "nested deeper than"),
    "a number too large": ("echo '{\"a\": 99999999999999999999}'", "$RERAIL_OUTPUT line 1"),
}


@pytest.mark.sweep(2)
@pytest.mark.scenario("C10", "E11", "V4")
@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.timeout(30)
def test_hostile_outputs_fail_their_step_cheaply(project: Project, name: str) -> None:
    script, words = OUTPUTS[name]
    project.pipeline("steps:\n  - id: a\n    run: |\n      (" + script + ') >> "$RERAIL_OUTPUT"\n', "p.yaml")
    code, messages, peak = check(project, "p.yaml", "--id", "r")

    assert code == 1, messages[:500]
    assert words in messages
    assert all(line.isprintable() for line in messages.splitlines())
    assert peak < MOST_KILOBYTES
    assert project.json("show", "r")["steps"][0]["outputs"] == {}
