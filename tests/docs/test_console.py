"""Every console block of the docs is executed, in an empty directory, and prints what the page says.

Times, durations, ids of processes and sizes are taken to be equal; a line `…` stands for any lines; `[exit N]` is the code.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_CONSOLE = [page for page in PAGES if "```console" in page.read_text(encoding="utf-8")]

_EQUAL = [
    (re.compile(r"attempt 1 \(after [^)]*\)"), "attempt 1"),  # said where it took a second, as a slow disk makes it
    (re.compile(r" \([^)]* from start to finish\)"), ""),  # said where the wait in between took a second
    (re.compile(r"until (\d{4}-\d\d-\d\d )?\d\d:\d\d\b"), "until TIME"),
    (re.compile(r"approved by \S+"), "approved by NAME"),
    (re.compile(r"\d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "DATE"),
    (re.compile(r"(\d+ h )?(\d+ min )?\d+(\.\d+)? (s|ms|min|kB|MB|bytes)\b"), "N"),
    (re.compile(r"\d+ passed in \S+"), "passed"),
    (re.compile(r"^\.+ +\[100%\]"), "passing"),
    (re.compile(r"process \d+ on \S+"), "process"),
    (re.compile(r" \([^)]* from start to finish\)"), ""),  # said where it differs, as on a slow machine
    (re.compile(r"pid \d+"), "pid"),
    (re.compile(r"byte \d+: .*"), "byte"),
    (re.compile(r"/\S*/\.rerail"), "STATE"),
    (re.compile(r" {2,}"), "  "),
    (re.compile(r"up to \d+ in parallel"), "up to N in parallel"),
]


def normal(line: str) -> str:
    for pattern, name in _EQUAL:
        line = pattern.sub(name, line)
    return line.strip()


def matches(expected: list[str], actual: list[str]) -> bool:
    """Whether the lines agree, `…` standing for any number of them."""
    if not expected:
        return not actual
    if expected[0] == "…":
        return any(matches(expected[1:], actual[at:]) for at in range(len(actual) + 1))
    return bool(actual) and expected[0] == actual[0] and matches(expected[1:], actual[1:])


# What is said only where something takes long.
_ASIDE = re.compile(r"rerail: verifying artifacts, .* read so far")


def patient(command: str) -> str:
    """The command with what a person waits a second for waited for until it is there."""
    return re.sub(r"(--id (\w+) .*& )sleep 1;", r"\1until rerail show \2 > /dev/null 2>&1; do sleep 0.1; done;", command)


def commands(block: str) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in block.rstrip("\n").split("\n"):
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


@pytest.mark.sweep(3)
@pytest.mark.parametrize("page", WITH_CONSOLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_says_is_what_happens(page: Path, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
    }
    for name in ("CI", "GITHUB_ACTIONS", "RERAIL_STORE", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        env.pop(name, None)
    for kind, block in FENCE.findall(page.read_text(encoding="utf-8")):
        first = block.split("\n", 1)[0]
        if kind in ("yaml", "python") and first.startswith("# file: "):
            (tmp_path / first.removeprefix("# file: ")).write_text(block, encoding="utf-8")
        if kind != "console":
            continue
        for command, said in commands(block):
            done = subprocess.run(
                ["bash", "-c", patient(command)],
                cwd=tmp_path,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=120,
                check=False,
            )
            lines = done.stdout.decode().rstrip("\n").split("\n") if done.stdout else []
            lines = [line for line in lines if not _ASIDE.fullmatch(line)]
            if done.returncode:
                lines.append(f"[exit {done.returncode}]")
            expected, actual = [normal(line) for line in said], [normal(line) for line in lines]
            assert matches(expected, actual), f"{page.name}: $ {command}\n" + "\n".join(lines)
