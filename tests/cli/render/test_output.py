"""What steps print, among our own lines: as it comes or in groups, bounded, masked, in the order in which it was printed."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest

from rerail.cli.render import output
from rerail.cli.render.output import HeldOutput, LineAssembler, LiveOutput, output_mode, text_of
from rerail.cli.render.terminal import Terminal
from rerail.core.unit_id import UnitId
from tests.cli.screen import screen
from tests.conftest import RERAIL, Project, eventually

PLAIN = Terminal(unicode=False)
A, ITEM = UnitId("a"), UnitId("m", "x")


class Said:
    """A live output with a clock and a backlog of the test."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now, self.waiting = 0.0, 0
        self.live = LiveOutput("r", "", PLAIN, self._say, lambda: self.waiting, lambda: self.now)

    def _say(self, text: str) -> None:
        self.lines += text.split("\n")


# The choice


@pytest.mark.parametrize(
    ("look", "flags", "expected"),
    [
        (PLAIN, {}, "none"),
        (PLAIN, {"verbose": True}, "live"),
        (Terminal(ci="plain"), {}, "live"),
        (Terminal(ci="github"), {}, "grouped"),
        (Terminal(ci="github"), {"verbose": True}, "grouped"),
        (Terminal(ci="github"), {"quiet": True}, "none"),
        (Terminal(ci="plain"), {"as_json": True}, "none"),
        (Terminal(live=True), {}, "none"),
    ],
)
def test_the_default_depends_on_the_place(look: Terminal, flags: dict[str, bool], expected: str) -> None:
    flags = {"quiet": False, "verbose": False, "as_json": False} | flags

    assert output_mode(None, look, **flags) == expected
    assert output_mode("failed", look, **flags) == "failed"


# Lines


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_whole_wherever_the_stream_is_cut(size: int) -> None:
    text = "one\ntwo µ three\n\n10 %\r20 %\r\nlast".encode()
    assembler = LineAssembler()
    lines = b"".join(assembler.feed(text[at : at + size]) for at in range(0, len(text), size)) + assembler.end()

    assert [text_of(line) for line in lines[:-1].split(b"\n")] == ["one", "two µ three", "", "20 %", "last"]


def test_a_line_without_an_end_takes_no_memory_and_is_shortened() -> None:
    assembler = LineAssembler()
    for _ in range(1000):
        assert assembler.feed(b"x" * 4096) == b""
        assert len(assembler._rest) <= output.LINE_BYTES + 1

    assert text_of(assembler.end()[:-1]) == "x" * output.LINE_BYTES + "…"


def test_a_line_cannot_control_the_terminal() -> None:
    assert text_of(b"\033]0;owned\007\033[2Ja\x08b") == "a\N{REPLACEMENT CHARACTER}b"


# As it comes


def test_live_lines_have_their_step_and_the_order_of_their_streams() -> None:
    said = Said()
    said.live.take(A, 1, "out", b"one\ntw")
    said.live.take(ITEM, 1, "err", b"else\n")
    said.live.take(A, 1, "err", b"oh\n")
    said.live.take(A, 1, "out", b"o\nrest")
    said.live.take(A, 1, "out", b"")
    said.live.take(A, 1, "err", b"")

    assert said.lines == ["a | one", "m[x] | else", "a | oh", "a | two", "a | rest"]


def test_a_step_that_prints_too_much_is_left_out_and_another_is_not() -> None:
    said = Said()
    for _ in range(100):
        said.live.take(A, 1, "out", b"x" * 99 + b"\n" + b"y\n" * 20_000)
    said.live.take(ITEM, 1, "out", b"hello\n")
    said.live.take(A, 1, "out", b"")
    shown = [line for line in said.lines if line in ("a | y", f"a | {'x' * 99}")]
    left_out = [line for line in said.lines if "left out" in line]

    assert "m[x] | hello" in said.lines
    assert sum(map(len, shown)) < output.STEP_BURST * 3  # with their titles
    assert left_out == [f"a | … {100 * 20_001 - len(shown)} lines left out: rerail logs r a"]


def test_once_lines_are_left_out_they_are_counted_at_most_once_a_second() -> None:
    said = Said()
    for at in range(2000):
        said.now = at / 100
        said.live.take(A, 1, "out", b"yyyy\n" * 1000)
    said.live.take(A, 1, "out", b"")
    left_out = [line for line in said.lines if "left out" in line]
    shown = sum(line == "a | yyyy" for line in said.lines)

    assert 2 <= len(left_out) <= 21
    assert shown + sum(int(line.split()[3]) for line in left_out) == 2000 * 1000


def test_a_reader_that_does_not_read_is_not_written_to() -> None:
    said = Said()
    said.waiting = output.MAX_BACKLOG
    said.live.take(A, 1, "out", b"one\n")
    said.waiting = 0
    said.live.take(A, 1, "out", b"two\n")

    assert said.lines == ["a | … 1 line left out: rerail logs r a", "a | two"]


# Together, at the end


def held(*pieces: bytes, **release: bool) -> list[str]:
    one = HeldOutput("r", "")
    for piece in pieces:
        one.take(A, 2, "out", piece)
    one.take(A, 2, "out", b"")
    assert one.release(A, 1) == []
    return one.release(A, 2, **release)


def test_the_beginning_and_the_end_of_long_output_are_kept() -> None:
    lines = held(*(b"%07d\n" % number for number in range(100_000)))
    at = next(number for number, line in enumerate(lines) if "left out" in line)

    assert lines[:at] == [f"{number:07d}" for number in range(output.HEAD_BYTES // 8)]
    assert lines[at + 1 :] == [f"{number:07d}" for number in range(100_000 - output.TAIL_BYTES // 8, 100_000)]
    assert lines[at] == f"… {100_000 - len(lines) + 1} lines left out: rerail logs r a"


def test_all_groups_together_are_bounded_and_failures_come_through_longer() -> None:
    one = HeldOutput("r", "")
    shown = [0, 0]
    for number in range(800):
        unit = UnitId("m", str(number))
        one.take(unit, 1, "out", (b"x" * 1023 + b"\n") * 48)
        shown[number % 2] += bool(one.release(unit, 1, failed=number % 2 == 1))

    assert 0 < shown[0] < shown[1] < 400
    assert sum(shown) + one.left_out == 800
    assert sum(shown) * 48 * 1024 <= 2 * output.MAX_GROUPED + 48 * 1024


# By the command line


@pytest.mark.scenario("V2")
def test_live_output_comes_before_its_step_is_done(project: Project) -> None:
    project.pipeline(
        "steps: [{id: a, run: 'echo under way; while ! test -e go; do sleep 0.02; done; echo over'}, {id: b, run: 'true'}]"
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--output", "live")
    assert process.stderr is not None
    lines: list[str] = []
    while (line := process.stderr.readline().rstrip("\n")) != "a | under way":
        assert line, lines
        lines.append(line)
    (project.root / "go").touch()
    lines = process.communicate()[1].splitlines()

    assert lines[0] == "a | over"
    assert "completed    a" in lines[1]
    assert not [line for line in lines if line.startswith("b |")]


LEDGER = """
steps:
  - id: m
    map: {over: [p, q, r], parallel: 1, max_failures: 1}
    steps: [{run: 'echo out ${{ item }}; echo err ${{ item }} >&2; test ${{ item }} != q'}]
  - id: lp
    loop: {max_iterations: 2}
    steps: [{id: one, run: 'echo round ${{ loop.iteration }}'}, {id: two, run: 'true'}]
  - {id: a, retry: {attempts: 2, delay: 0}, run: 'echo try $RERAIL_ATTEMPT; test $RERAIL_ATTEMPT = 2'}
"""


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("grouped", ["m[p] | out p", "m[p] | err p", "m[q] | out q", "m[q] | err q", "m[r] | out r", "m[r] | err r",
                     "lp/one[1] | round 1", "lp/one[2] | round 2", "a | try 1", "a | try 2"]),
        ("failed", ["m[q] | out q", "m[q] | err q"]),
        ("none", []),
    ],
)  # fmt: skip
def test_grouped_output_stands_below_the_line_of_its_step(project: Project, mode: str, expected: list[str]) -> None:
    project.pipeline(LEDGER)
    lines = project.rerail("run", "pipeline.yaml", "--id", "r", "--output", mode, check=0).stderr.splitlines()

    assert [line for line in lines if " | " in line] == expected
    for before, line in zip(lines, lines[1:]):
        if " | " in line and " | " not in before:
            assert line.partition(" | ")[0] in before  # "completed    m[p]  0.0 s"


@pytest.mark.parametrize("command", ["resume", "fork", "dlq retry"])
def test_every_command_that_executes_shows_output(project: Project, command: str) -> None:
    project.pipeline("steps: [{id: m, map: {over: [x]}, steps: [{run: 'echo said $RERAIL_ATTEMPT; test -e fixed'}]}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "fixed").touch()
    more = ["--from", "m", "--id", "f"] if command == "fork" else []
    done = project.rerail(*command.split(), "r", *more, "--output", "live", check=0)

    assert [line for line in done.stderr.splitlines() if line.startswith("m[x] | said ")]


def test_ci_streams_and_json_on_stdout_is_what_it_was(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: echo said}]")
    project.env["CI"] = "true"

    assert "a | said" in project.rerail("run", "pipeline.yaml", check=0).stderr.splitlines()
    assert "a | said" not in project.rerail("run", "pipeline.yaml", "-q", check=0).stderr
    done = project.rerail("run", "pipeline.yaml", "--json", "--output", "live", check=0)
    assert "a | said" in done.stderr.splitlines()
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == [
        "run-started",
        "step-started",
        "step-completed",
        "run-finished",
    ]


def secrets_of(length: int) -> Iterator[str]:
    for cut in range(1, length):
        yield f"printf %s ${{TOKEN:0:{cut}}}; sleep 0.01; echo ${{TOKEN:{cut}}}; "


@pytest.mark.parametrize("mode", ["live", "grouped"])
def test_a_secret_is_masked_wherever_it_is_cut(project: Project, mode: str) -> None:
    project.env["TOKEN"] = "hush-9f3a"
    script = "".join(secrets_of(9))
    project.pipeline("secrets: [TOKEN]\nsteps: [{id: a, run: 'SCRIPT echo done'}]".replace("SCRIPT", script))
    done = project.rerail("run", "pipeline.yaml", "--output", mode, check=0)

    assert [line for line in done.stderr.splitlines() if line.startswith("a | ")] == ["a | ***"] * 8 + ["a | done"]


@pytest.mark.scenario("G6")
def test_a_pipe_that_nobody_reads_does_not_hold_up_a_step_that_prints_much(project: Project) -> None:
    project.pipeline(
        "steps: [{id: a, run: 'head -c 30000000 /dev/zero | tr \"\\\\0\" \"\\\\n\"; echo a >> $LEDGER'}, {id: b, run: 'echo b >> $LEDGER'}]"
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--output", "live")  # its pipes are never read
    eventually(lambda: project.ledger() == ["a", "b"], "both steps ran")
    process.wait()

    assert project.json("list")[0]["status"] == "completed"
    process.communicate()


def test_output_of_an_interrupted_step_is_shown_with_its_end(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: 'echo before; touch said; sleep 60'}]")
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--output", "grouped")
    eventually((project.root / "said").exists, "it printed")
    process.send_signal(signal.SIGTERM)
    lines = process.communicate()[1].splitlines()

    assert "interrupted  a" in lines[lines.index("a | before") - 1]


def test_on_a_terminal_the_lines_of_steps_have_colours(project: Project) -> None:
    project.pipeline("steps: [{id: a, needs: [], run: 'echo one'}, {id: b, run: 'echo two'}]")
    shown = screen(project, "run", "pipeline.yaml", "--id", "r", "--output", "live")
    text = shown.end()

    assert "a | one" in text
    assert b"\033[36ma | \033[0mone" in shown.raw
    assert b"\033[32mb | \033[0mtwo" in shown.raw


def test_nothing_of_it_is_recorded(project: Project) -> None:
    project.pipeline("steps: [{id: a, run: echo said}]")
    for mode in ("live", "none"):
        subprocess.run(
            [*RERAIL, "run", "pipeline.yaml", "--id", mode, "--output", mode],
            cwd=project.root, env=project.env, check=True, capture_output=True, timeout=120,
        )  # fmt: skip
    records = [[set(row) for row in project.json("history", run)] for run in ("live", "none")]

    assert records[0] == records[1]
