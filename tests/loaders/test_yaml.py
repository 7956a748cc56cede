"""Pipeline files: every problem at once, each with its place; hostile ones fail fast and create nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rerail.core.model import Python, Retry, Run, Write
from rerail.core.staleness import fingerprint
from rerail.errors import PipelineInvalid
from rerail.loaders.fields import parse_duration
from rerail.loaders.schema import _DURATION_PATTERN
from rerail.loaders.yaml import load_pipeline, read_pipeline_file
from tests.conftest import Project


def problems(text: str) -> list[str]:
    with pytest.raises(PipelineInvalid) as caught:
        load_pipeline(text.encode(), "p.yaml")
    return list(caught.value.problems)


def test_everything_a_step_can_say() -> None:
    pipeline = load_pipeline(
        b"""
name: all
labels: {team: docs}
env: {A: 1, B: yes}
params:
  task: {type: string, required: true}
  level: draft
defaults: {timeout: 30m, retry: {attempts: 2}, env: {C: c}}
checkpoint: {interval: 10s, history: 3, on_error: warn}
steps:
  - run: "echo hi"
  - id: py
    python: pkg.mod:fn
    with: {n: 1, deep: [a, {b: null}]}
    needs: []
    timeout: 1h30m
    retry: {attempts: 4, backoff: linear, delay: 2s, max_delay: 1m, jitter: false}
    env: {C: d, D: 012}
    cwd: sub
    allow_failure: true
    idempotent: false
  - {id: w, write: {path: a.txt, content: ""}, needs: [py, step-1], retry: 3}
""",
        "p.yaml",
    )
    first, py, write = pipeline.steps

    assert (pipeline.name, pipeline.labels, pipeline.env) == ("all", {"team": "docs"}, {"A": "1", "B": "yes"})
    assert (pipeline.checkpoint.interval, pipeline.checkpoint.history) == (10.0, 3)
    assert pipeline.params["task"].required
    assert pipeline.params["level"].default == "draft"
    assert (first.id, first.action, first.needs) == ("step-1", Run(script="echo hi"), ())
    assert (first.timeout, first.retry, first.env) == (1800.0, Retry(attempts=2), {"C": "c"})
    assert py.action == Python(target="pkg.mod:fn", arguments={"n": 1, "deep": ["a", {"b": None}]})
    assert (py.timeout, py.needs, py.env, py.cwd) == (5400.0, (), {"C": "d", "D": "012"}, "sub")
    assert py.retry == Retry(attempts=4, backoff="linear", delay=2.0, max_delay=60.0, jitter=False)
    assert (py.allow_failure, py.idempotent) == (True, False)
    assert write.action == Write(path="a.txt", content="")
    assert (write.needs, write.retry.attempts) == (("py", "step-1"), 3)


def test_all_problems_of_a_file_at_once_in_order() -> None:
    found = problems(
        """\
name: x
stepps: []
steps:
  - id: a
    run: echo
    neds: [b]
  - id: a
    python: nonsense
    timeout: soon
  - needs: [ghost]
    retry: {attempts: 0}
"""
    )

    assert [line.split(": ", 1)[0] for line in found] == [
        "p.yaml:2:1", "p.yaml:6:5", "p.yaml:7:5", "p.yaml:8:13", "p.yaml:9:14", "p.yaml:10:5", "p.yaml:10:13",
        "p.yaml:11:23",
    ]  # fmt: skip
    text = "\n".join(found)
    for words in (
        "did you mean `steps`?",
        "unknown key `neds`; did you mean `needs`?",
        "taken by the step in line 4",
        "must be module:function",
        "must be a duration such as 200ms, 30s",
        "needs exactly one of run, python, write, approve, map, loop, pipeline; it has none",
        "unknown step `ghost`",
        "at least 1",
    ):
        assert words in text


def test_a_cycle_is_named_with_its_path() -> None:
    text = "steps:\n" + "".join(
        f"  - {{id: {step}, run: x, needs: [{need}]}}\n" for step, need in (("a", "c"), ("b", "a"), ("c", "b"))
    )

    assert problems(text) == ["p.yaml:2:5: dependency cycle: a → c → b → a"]


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.sweep("all")
@pytest.mark.scenario("J6")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "1:1: the file is empty"),
        ("[]", "must be a mapping, not a list"),
        ("steps: []", "at least one step"),
        ("steps: {a: 1}", "at least one step"),
        ("steps: [1]", "must be a mapping, not a number"),
        ("a: 1\na: 2\n", "2:1: `a` is given twice (first in line 1)"),
        ("steps: [{run: x}]\n---\nsteps: []", "a second document"),
        ("[" * 50_000, "nested deeper than 100"),
        (BOMB, "aliases expand to more than"),
        ("a: &a {b: 1}\nc: {<<: *a}", "merge keys"),
        ("a: !!python/object/apply:os.system [id]", "not supported"),
        ("a: !custom x", "not supported"),
        ("a: *nope", "no anchor `nope`|found undefined alias"),
        ("steps: [{run: x, retry: {delay: 1e400}}]", "a number too large"),
        ("a: 99999999999999999999999", "more than 18 digits"),
        ("a: [1, 2", "1:"),
        ("\tsteps: x", "1:1"),
        ("steps: [{run: 'a\\0b'}]\n", ""),
        ('steps: [{run: "a\\0b"}]\n', "NUL"),
        ("steps: [{run: 'echo ${{ params.x }}'}]", "1:32: no param `x`"),
        ("steps: [{run: 'echo ${{ params.x'}]", "1:21: `${{` has no `}}`"),
        ("steps: [{run: 'echo `${{ run.id }}`'}]", "cannot be in `backticks`"),
        ("steps: [{run: x, when: y}]", "1:24: unknown name `y`"),
        ("steps: [{run: x, when: 1 +}]", "1:26: a value is missing after `+`"),
        ("steps: [{id: a, run: x}, {id: b, run: x, needs: [], when: steps.a.status}]", "add it to `needs`"),
        ("steps: [{run: x, env: {A: '${{ nope }}'}}]", "unknown name `nope`"),
        ("steps: [{write: {path: a, content: '${{ run.x }}'}}]", "`run` has id, dir, status"),
        ("steps: [{run: x, agent: claude}]", "`agent` is not supported by this version"),
        ("steps: [{id: 'a/b', run: x}]", "cannot be a step id"),
        ("steps: [{run: ''}]", "is empty"),
        ("steps: [{run: x, write: {path: a, content: b}}]", "it has `run` and `write`"),
        ("steps: [{run: x, with: {a: 1}}]", "is only for `python` and `pipeline`"),
        ("? [a, b]\n: c", "a key must be text"),
        ("steps: [{write: {path: a, mode: 755}}]", '"0755" or "0644", not 755: write "0755", in quotes'),
        ("steps: [{write: {path: a, mode: 493}}]", '"0755" or "0644", not 493'),
        ("steps: [{write: {path: a, mode: u+x}}]", "octal permissions in quotes"),
        ("steps: [{write: {path: a, mode: '4755'}}]", "octal permissions in quotes"),
        ("steps: [{write: {path: a, mode: '0o755'}}]", "octal permissions in quotes"),
        ("steps: [{write: {path: a, mode: '0788'}}]", "octal permissions in quotes"),
        ("steps: [{write: {path: a, mode: '${{ run.id }}'}}]", "octal permissions in quotes"),
        ("steps: [{run: x, outputs: {a: json}}]", "for JSON or lines write {from: stdout, as: json}"),
        ("steps: [{run: x, outputs: {a: '1.2'}}]", "output `a` must be stdout, or a mapping"),
        ("steps: [{run: x, timeout: 5d}]", "a duration such as 200ms, 30s, 5m or 1h30m, not '5d'"),
    ],
)
def test_bad_files_are_one_line_each(text: str, words: str) -> None:

    if not words:
        load_pipeline(text.encode(), "p.yaml")
        return
    found = problems(text)
    assert any(alternative in "\n".join(found) for alternative in words.split("|")), found
    assert all("\n" not in line for line in found)


@pytest.mark.scenario("J6")
def test_yaml_12_scalars_are_what_they_look_like() -> None:
    pipeline = load_pipeline(
        b"env: {a: no, b: on, c: 012, d: 12:30:45, e: 1_000, f: 0o7, g: '1', h: 1.0}\nsteps: [{run: x}]", "p.yaml"
    )

    assert list(pipeline.env.values()) == ["no", "on", "012", "12:30:45", "1_000", "0o7", "1", "1.0"]


@pytest.mark.scenario("J12")
@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "device", "huge", "latin-1"])
def test_files_that_are_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "p.yaml"
    match kind:
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "huge":
            with path.open("wb") as file:
                file.truncate(10_000_000_000)
        case "latin-1":
            path.write_bytes(b"name: caf\xe9\nsteps: []")
    with pytest.raises(PipelineInvalid):
        load_pipeline(read_pipeline_file(str(path)), str(path))


@pytest.mark.scenario("J12")
def test_a_bom_is_no_problem() -> None:
    assert load_pipeline(b"\xef\xbb\xbfsteps: [{run: x}]", "p.yaml").name == "p"


def test_a_bad_file_creates_nothing_and_shows_all_problems(project: Project) -> None:
    project.pipeline("steps: [{runn: x}]\nname: [1]\n")
    refused = project.rerail("run", "pipeline.yaml", check=2)

    assert "pipeline.yaml:1:10: error: unknown key `runn`\n" in refused.stderr
    assert "help: did you mean `run`?" in refused.stderr
    assert "pipeline.yaml:2:7" in refused.stderr
    assert not (project.root / ".rerail").exists()


@pytest.mark.sweep("all")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("env: {'': x}", "'' cannot be the name of a variable"),
        ("env: {'A=B': x}", "'A=B' cannot be the name of a variable"),
        ('env: {A: "x\\0y"}', "`A` of `env` holds a NUL character"),
        ("params: {n: {type: integer, default: many}}", "the default 'many' is not of type integer"),
        ("params: {n: {type: integer, default: '3'}}", "the default '3' is not of type integer"),
        ("params: {n: {choices: [a, b], default: c}}", "the default 'c' is not one of its choices"),
        ("params: {n: {choices: a}}", "`choices` of param `n` must be a list, not text"),
        ("params: {n: {type: number, choices: [1, x]}}", "the choice 'x' is not of type number"),
        ("defaults: {timeout: 0}", "`timeout` of `defaults` must be above 0"),
        ("defaults: {retry: {delay: 100000000000000000}}", "`delay` of `retry` must be a duration"),
        ("params: {n: {required: true, default: x}}", "its default would never be used"),
        ("finally: [{run: x, checks: ['']}]", "is empty or holds a NUL"),
        ("defaults: {retry: many}", "`retry` must be a number of attempts or a mapping, not 'many'"),
        ('"\\e[31mred\\n": 1', "unknown key `\\\\x1b[31mred\\\\n`"),
    ],
)
def test_what_would_surprise_later_is_refused_now(text: str, words: str) -> None:
    assert words.replace("\\\\", "\\") in "\n".join(problems(text + "\nsteps: [{run: 'true'}]"))


@pytest.mark.scenario("J16")
@pytest.mark.parametrize(
    "field", ['id: "a\\eb"', 'cwd: "a\\0b"', 'needs: ["x\\e[2J\\ny"]', 'when: "\\e[2J\\n("', "run: !\u202e x"]
)
def test_no_name_in_a_message_steers_the_terminal(field: str) -> None:
    found = problems("steps:\n  - {" + field + ("" if field.startswith("run") else ", run: 'true'") + "}\n")

    assert found
    assert all(line.isprintable() for line in found)


def test_numbers_in_env_stay_as_they_are_written() -> None:
    pipeline = load_pipeline(b"env: {V: 3.10, W: 1e3, Z: +5, B: True}\nlabels: {v: 1.10}\nsteps: [{run: x}]", "p.yaml")

    assert pipeline.env == {"V": "3.10", "W": "1e3", "Z": "+5", "B": "True"}
    assert pipeline.labels == {"v": "1.10"}


def test_a_place_in_a_block_is_where_it_stands() -> None:
    assert problems("steps:\n  - run: |\n\n      echo one\n      echo ${{ nope }}\n")[0].startswith("p.yaml:5:16:")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("200ms", 0.2), ("1s500ms", 1.5), ("5m", 300.0), ("5ms", 0.005), ("1h2m3s4ms", 3723.004), ("0.5ms", 0.0005)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)
    assert re.fullmatch(_DURATION_PATTERN, text)


@pytest.mark.parametrize("text", ["ms", "5 ms", "5ms3s", "-5ms", "5mss", "5d"])
def test_what_is_no_duration(text: str) -> None:
    assert parse_duration(text) is None
    assert not re.fullmatch(_DURATION_PATTERN, text)


def test_an_output_is_stdout_in_short() -> None:
    short, long = (
        load_pipeline(f"steps: [{{run: x, outputs: {{a: {form}}}}}]".encode(), "p.yaml").steps[0]
        for form in ("stdout", "{from: stdout, as: text}")
    )

    assert short.outputs == long.outputs


def test_the_mode_of_a_written_file_is_part_of_its_definition() -> None:
    texts = ("", ", mode: '0755'", ", mode: 0755", ", mode: '755'", ", mode: '0644'")
    steps = [load_pipeline(f"steps: [{{write: {{path: a{mode}}}}}]".encode(), "p.yaml").steps[0] for mode in texts]
    none, quoted, plain, short, other = (fingerprint(step, {}) for step in steps)

    assert quoted == plain == short
    assert len({none, quoted, other}) == 3
