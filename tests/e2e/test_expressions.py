"""Expressions end to end: params, outputs and conditions in real pipelines."""

from __future__ import annotations

import pytest

from tests.conftest import Project

NASTY = 'it\'s "quoted" $(touch pwned) `touch pwned` \\ * ~ ;&|<>(){}[] #\nsecond line \U0001f600\t'


@pytest.mark.scenario("J7")
def test_params_and_outputs_arrive_unharmed_in_every_kind(project: Project) -> None:
    (project.root / "mod.py").write_text("def f(**given): return {'got': given}\n")
    project.pipeline(
        """
params: {text: {required: true}, n: {type: integer, default: 3}}
env: {GREETING: "hello ${{ params.n }}"}
steps:
  - id: first
    run: |
      printf %s ${{ params.text }} > bare.txt
      printf %s "${{ params.text }}" > double.txt
      printf %s '${{ params.text }}' > single.txt
      cat > here.txt <<END
      ${{ params.text }}
      END
      echo "sum=$(( ${{ params.n }} + 1 ))" >> "$RERAIL_OUTPUT"
      echo '{"list": [1, {"k": "v"}]}' >> "$RERAIL_OUTPUT"
  - id: second
    env: {SUM: "${{ steps.first.outputs.sum }}"}
    cwd: ${{ 'sub' if steps.first.outputs.sum == 4 else 'no' }}
    run: printf '%s|%s|%s' "$GREETING" "$SUM" ${{ steps.first.outputs.list }} > ../second.txt
  - id: third
    python: mod:f
    with: {n: "${{ params.n }}", text: "${{ params.text }}!", all: ["${{ steps.first.outputs.list }}"]}
  - id: fourth
    write: {path: "out-${{ params.n }}.txt", content: "${{ run.id }}: ${{ steps.third.status }}"}
"""
    )
    (project.root / "sub").mkdir()
    project.rerail("run", "pipeline.yaml", "--id", "r", "-p", f"text={NASTY}", check=0)

    for name in ("bare", "double", "single"):
        assert (project.root / f"{name}.txt").read_text() == NASTY
    assert (project.root / "here.txt").read_text() == f"{NASTY}\n"
    assert (project.root / "second.txt").read_text() == 'hello 3|4|[1,{"k":"v"}]'
    assert (project.root / "out-3.txt").read_text() == "r: completed"
    assert not (project.root / "pwned").exists()
    outputs = project.json("show", "r")["steps"][2]["outputs"]["got"]
    assert outputs == {"n": 3, "text": f"{NASTY}!", "all": [[1, {"k": "v"}]]}


@pytest.mark.scenario("H11")
def test_a_megabyte_is_a_value_like_any_other(project: Project) -> None:
    project.pipeline(
        """
steps:
  - id: big
    run: head -c 900000 /dev/zero | tr '\\0' 'x' | sed 's/^/v=/' >> "$RERAIL_OUTPUT"
  - id: use
    run: |
      printf %s ${{ steps.big.outputs.v }} | wc -c > size.txt
      cat > here.txt <<'END'
      ${{ steps.big.outputs.v }}
      END
"""
    )
    project.rerail("run", "pipeline.yaml", check=0)

    assert (project.root / "size.txt").read_text().strip() == "900000"
    assert (project.root / "here.txt").stat().st_size == 900001


def test_when_decides_and_dependants_of_a_skipped_step_run(project: Project) -> None:
    project.pipeline(
        """
params: {level: draft}
steps:
  - {id: a, run: "echo a >> $LEDGER; echo score=7 >> $RERAIL_OUTPUT"}
  - {id: b, when: params.level == "final", run: "echo b >> $LEDGER"}
  - {id: c, when: "steps.a.outputs.score > 5 and steps.b.status == 'skipped'", run: "echo c >> $LEDGER"}
  - {id: d, when: "${{ false }}", run: "echo d >> $LEDGER"}
"""
    )
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert project.ledger() == ["a", "c"]
    statuses = [step["status"] for step in project.json("show", "r")["steps"]]
    assert statuses == ["completed", "skipped", "completed", "skipped"]
    assert 'skipped      b: `when` is false (params.level == "final")' in done.stderr
    project.rerail("run", "pipeline.yaml", "-p", "level=final", check=0)
    assert project.ledger()[2:] == ["a", "b"]


def test_a_condition_without_a_value_fails_its_step_and_never_runs_it(project: Project) -> None:
    project.pipeline(
        "steps:\n  - {id: a, run: 'true'}\n"
        "  - {id: ship, when: 'steps.a.outputs.approved == 1', run: 'echo shipped >> $LEDGER'}\n"
    )
    failed = project.rerail("run", "pipeline.yaml", check=1)

    assert "step a set no output `approved` (it set none)" in failed.stderr
    assert project.ledger() == []


@pytest.mark.scenario("J8")
@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("steps.a.outputs.missing", "step a set no output `missing` (it set: n)"),
        ("1 / (steps.a.outputs.n - 1)", "division by zero"),
        ("steps.a.outputs.n ** 9999999", "the power is too large"),
        ("1e400", "inf"),
        ("[1]|tojson(indent=999999999)", "indent"),
    ],
)
def test_an_expression_without_a_value_fails_its_step_by_name(project: Project, expression: str, words: str) -> None:
    project.pipeline(
        f"steps:\n  - {{id: a, run: 'echo n=1 >> $RERAIL_OUTPUT'}}\n  - {{id: b, run: 'echo ${{{{ {expression} }}}}'}}\n"
        "    retry: 3\n".replace("    retry: 3\n", "")
    )
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    assert words in failed.stderr
    assert project.json("show", "r")["error"]["type"] == "ExpressionError"


def test_lines_of_progress_that_are_none_are_named(project: Project) -> None:
    project.pipeline(
        """
steps:
  - id: a
    run: |
      echo '{"done": 3, "total": 18}' >> "$RERAIL_PROGRESS"
      echo 'half way' >> "$RERAIL_PROGRESS"
      echo '{"done": "x"}' >> "$RERAIL_PROGRESS"
"""
    )
    done = project.rerail("run", "pipeline.yaml", check=0)

    assert "a: $RERAIL_PROGRESS line 2: not JSON" in done.stderr
    assert 'a: $RERAIL_PROGRESS line 3: not like {"done": 3, "total": 18}' in done.stderr
    assert "line 1" not in done.stderr


COUNTING = {
    "a param": (
        "params: {n: {required: true}}",
        "n=${{ params.n }}\n      if (( n > 3 )); then echo many; fi",
        "params.n",
    ),
    "a seed": ("params: {n: {required: true}}", "x=1; SRANDOM=$x; : ${{ params.n }}", "params.n"),
    "a name": ("params: {n: {required: true}}", 'x=${{ params.n }}; printf "$x" hello', "params.n"),
}


@pytest.mark.scenario("J7")
@pytest.mark.parametrize("value", ['a["$(touch pwned)"]', "a[.`touch pwned`]", "-va[$(touch pwned)]"])
@pytest.mark.parametrize("where", COUNTING)
def test_a_param_does_not_run_where_a_script_calculates(project: Project, where: str, value: str) -> None:
    params, script, expression = COUNTING[where]
    project.pipeline(f"{params}\nsteps:\n  - run: |\n      {script}\n      echo reached >> $LEDGER\n")
    failed = project.rerail("run", "pipeline.yaml", "-p", f"n={value}", check=1)

    assert f"`{expression}`: the value holds a subscript with a command in it" in failed.stderr
    assert "type: integer" in failed.stderr
    assert project.ledger() == []
    assert not (project.root / "pwned").exists()


@pytest.mark.scenario("J7")
def test_outputs_items_and_env_do_not_run_where_a_script_calculates(project: Project) -> None:
    (project.root / "payload").write_text('n=x["$(touch pwned)"]\n')
    (project.root / "names").write_text('a["$(touch pwned)"]\n')
    project.pipeline(
        """
steps:
  - {id: gen, run: 'cat payload >> "$RERAIL_OUTPUT"'}
  - {id: output, allow_failure: true, run: 'total=${{ steps.gen.outputs.n }}; [[ $total -gt 3 ]] || true'}
  - {id: env, allow_failure: true, env: {N: "${{ steps.gen.outputs.n }}"}, run: 'echo $(( N + 1 ))'}
  - id: items
    allow_failure: true
    map: {over: {lines: names}}
    steps: [{run: 'for w in ${{ item }}; do [[ $w -eq 3 ]] && echo three; done; true'}]
  - id: variable
    allow_failure: true
    map: {over: ["$(touch pwned)"]}
    steps: [{run: 'x=([$RERAIL_ITEM]=1)'}]
"""
    )
    done = project.rerail("run", "pipeline.yaml")

    assert not (project.root / "pwned").exists()
    assert "`steps.gen.outputs.n`: the value holds" in done.stderr
    assert "env `N`: the value holds" in done.stderr


def test_numbers_are_the_way_into_arithmetic(project: Project) -> None:
    project.pipeline(
        """
params: {n: {type: integer, default: -5}, f: {type: number, default: 2.5}}
steps:
  - {id: gen, run: 'echo count=7 >> "$RERAIL_OUTPUT"'}
  - id: use
    run: |
      n=${{ params.n }}; count=${{ steps.gen.outputs.count }}
      if (( n < 0 )) && [[ $count -gt 3 ]]; then echo "$(( 1-${{ params.n }} + count )) ${{ params.f }}" >> $LEDGER; fi
      echo $(( ${{ params.f | round | int }} + 1 )) >> $LEDGER
  - {id: float, run: 'echo $(( ${{ params.f }} + 1 ))'}
"""
    )
    failed = project.rerail("run", "pipeline.yaml", check=1)

    assert project.ledger() == ["13", "2.5", "3"]
    assert "`params.f`: only a whole number of up to 64 bits can stand where the shell calculates" in failed.stderr
    refused = project.rerail("run", "pipeline.yaml", "-p", 'n=a["$(touch pwned)"]')
    assert "must be of type integer" in refused.stderr
    assert not (project.root / "pwned").exists()


@pytest.mark.scenario("J7")
@pytest.mark.parametrize(
    "step",
    [
        "{run: 'true', checks: ['(( N > 3 )) || true']}",
        "{map: {over: {command: '(( N )) || true', as: lines}}, steps: [{run: x}]}",
    ],
)
def test_values_do_not_run_in_checks_and_lists_either(project: Project, step: str) -> None:
    project.pipeline(f'params: {{n: {{required: true}}}}\nenv: {{N: "${{{{ params.n }}}}"}}\nsteps: [{step}]\n')
    failed = project.rerail("run", "pipeline.yaml", "-p", 'n=a["$(touch pwned)"]', check=1)

    assert "env `N`: the value holds a subscript" in failed.stderr
    assert not (project.root / "pwned").exists()


# The environment of maps, loops and pipelines


def lines_of(project: Project, run: str = "r") -> dict[str, str]:
    """The one line that each step printed."""
    printed = project.rerail("logs", run, check=0).stdout.splitlines()
    return {step.strip(): line for step, _, line in (one.partition("| ") for one in printed)}


def test_the_environment_of_what_is_around_a_step_is_evaluated_where_that_stands(project: Project) -> None:
    project.pipeline(
        """
params: {who: {default: inner-default}}
env: {I: "i-${{ params.who }}", B: "inner-${{ params.who }}"}
steps:
  - {id: x, run: 'echo "y=inner" >> "$RERAIL_OUTPUT"; echo "$A $B $I $D $P"'}
  - {id: z, map: {over: [1]}, env: {I: zmap}, steps: [{id: a, run: 'echo "$A $B $I"'}, {id: b, run: 'true'}]}
finally: [{id: f, run: 'echo "$A $B $I"'}]
""",
        "inner.yaml",
    )
    project.pipeline("""
params: {who: {default: outer}}
env: {A: pipeline, P: "p-${{ params.who }}"}
defaults: {env: {D: "d-${{ params.who }}"}}
steps:
  - {id: x, run: 'echo "y=of-x" >> "$RERAIL_OUTPUT"; echo "$A $P $D"'}
  - id: m
    env: {A: "${{ steps.x.outputs.y }}", B: "${{ params.who }}", D: m}
    map: {over: [1]}
    steps: [{run: 'echo "$A $B $D $P"'}]
  - id: l
    env: {A: "${{ steps.x.outputs.y }}"}
    loop: {max_iterations: 1}
    steps:
      - {id: x, run: 'echo "y=of-loop" >> "$RERAIL_OUTPUT"; echo "$A"'}
      - {id: own, env: {A: "own ${{ steps.x.outputs.y }}"}, run: 'echo "$A"'}
  - {id: q, env: {A: "${{ steps.x.outputs.y }}"}, pipeline: inner.yaml, with: {who: inner}}
""")
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert lines_of(project) == {
        "x": "pipeline p-outer d-outer",
        "m[1]": "of-x outer m p-outer",
        "l/x[1]": "of-x",
        "l/own[1]": "own of-loop",
        "q/x": "of-x inner-inner i-inner d-outer p-outer",
        "q/z/a[1]": "of-x inner-inner zmap",
        "q/f": "of-x inner-inner i-inner",
    }


def test_what_a_variable_from_around_holds_is_no_expression_and_no_command(project: Project) -> None:
    project.pipeline("""
params: {text: {required: true}}
steps:
  - id: l
    env: {T: "${{ params.text }}"}
    loop: {max_iterations: 1}
    steps: [{id: plain, run: 'echo "$T"'}, {id: counting, run: 'echo "$(( T ))"'}]
""")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", "-p", "text=${{ 7 * 7 }} a[$(touch pwned)]", check=1)

    assert lines_of(project)["l/plain[1]"] == "${{ 7 * 7 }} a[$(touch pwned)]"
    assert not (project.root / "pwned").exists()
    assert "env `T`" in done.stderr


def test_a_variable_of_a_map_that_has_no_value_fails_the_map_with_its_name(project: Project) -> None:
    project.pipeline("""
steps:
  - {id: a, run: 'true'}
  - {id: m, env: {V: "${{ steps.a.outputs.v }}"}, map: {over: [1]}, steps: [{run: 'echo "$V" >> "$LEDGER"'}]}
""")
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    assert "`env`" in done.stderr
    assert project.ledger() == []


def test_a_skipped_step_is_why_its_output_is_missing(project: Project) -> None:
    project.pipeline(
        "params: {go: false}\n"
        "steps:\n"
        "  - {id: build, when: params.go, run: 'echo v=1 >> $RERAIL_OUTPUT'}\n"
        "  - {id: deploy, run: 'echo ${{ steps.build.outputs.v }} >> $LEDGER'}\n"
    )
    failed = project.rerail("run", "pipeline.yaml", check=1)

    assert "`steps.build.outputs.v`: step build was skipped, so it has no output `v`" in failed.stderr
    assert project.ledger() == []


def test_an_output_of_a_step_in_an_env_of_all_steps_is_refused_with_the_way_out(project: Project) -> None:
    steps = "steps:\n  - {id: a, run: 'true'}\n  - {id: b, needs: [], run: 'true'}\n  - {id: c, run: 'true'}\n"
    for head in ("env: {V: '${{ steps.a.outputs.v }}'}\n", "defaults: {env: {V: '${{ steps.a.outputs.v }}'}}\n"):
        project.pipeline(head + steps)

        refused = project.rerail("check", "pipeline.yaml", check=2)

        assert "put the variable into the `env` of the step that uses it" in refused.stderr
        assert refused.stderr.count("may not have run") == 1


def test_a_command_that_is_not_there_is_not_tried_again(project: Project) -> None:
    project.pipeline(
        "steps:\n  - {id: a, run: 'echo tried >> $LEDGER; no-such-command', retry: {attempts: 3, delay: 0}}\n"
    )
    failed = project.rerail("run", "pipeline.yaml", check=1)

    assert project.ledger() == ["tried"]
    assert "exited with code 127 (command not found)" in failed.stderr
