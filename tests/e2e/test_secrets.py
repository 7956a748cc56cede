"""Secrets reach neither the disk nor the screen, in whatever form and through whatever channel."""

from __future__ import annotations

import base64
import hashlib
import signal
import subprocess
from urllib.parse import quote

import pytest

from tests.conftest import Project, eventually
from tests.pipelines import dollars

SECRET = "sk-pLaNtEd/with+odd=chars&100%"


KEY = "-----BEGIN KEY-----\nAbCdEfGhIjKlMnOpQrSt\nuVwXyZ0123456789+/ab\n-----END KEY-----"


def forms() -> list[bytes]:
    raw = SECRET.encode()
    encoded = [base64.b64encode(b"x" * shift + raw + b"tail")[4:-8] for shift in range(3)]
    return [raw, quote(SECRET, safe="").encode(), b"AbCdEfGhIjKlMnOpQrSt", *encoded]


def check_nothing_leaked(project: Project, *texts: str) -> None:
    for path in (project.root / ".rerail").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for form in forms():
                assert form not in data, f"{form!r} in {path}"
    for text in texts:
        for form in forms():
            assert form not in text.encode()


PIPELINE = """
secrets: [TOKEN, KEY]
steps:
  - id: leaks
    allow_failure: true
    run: |
      echo "$TOKEN"; echo "$TOKEN" >&2; echo "$KEY"
      printf %s "$TOKEN" | sed 's/./&\\n/15' | tr -d '\\n'; echo
      for i in 1 2 3; do printf '%s' "$TOKEN$TOKEN"; done; echo
      head -c 70000 /dev/zero | tr '\\0' x; echo "$TOKEN"
      printf %s "${TOKEN%????????}"; sleep 0.05; printf '%s\\n' "${TOKEN#"${TOKEN%????????}"}"
      printf 'x%stail' "$TOKEN" | base64 -w 0; printf 'xx%stail' "$TOKEN" | base64 -w 0; printf '%stail' "$TOKEN" | base64 -w 0
      python3 -c 'import os, urllib.parse; print(urllib.parse.quote(os.environ["TOKEN"], safe=""))'
      printf '{"secret": "%s", "deep": [{"%s": 1}]}\\n' "$TOKEN" "$TOKEN" >> "$RERAIL_OUTPUT"
      echo "plain=$TOKEN" >> "$RERAIL_OUTPUT"
      echo "{\\"$TOKEN\\": \\"$TOKEN\\"}" >> "$RERAIL_METRICS"
      echo "{\\"$TOKEN\\": 5}" >> "$RERAIL_METRICS"
      touch leaked
      while ! test -e go; do sleep 0.02; done
  - id: raises
    python: mod:f
    allow_failure: true
  - id: captured
    run: echo "$TOKEN"
    outputs: {x: {from: stdout}}
  - id: expression
    run: |
      echo ${{ env.TOKEN }}
      exit $(( ${{ env.TOKEN }} ))
"""


@pytest.fixture
def leaky(project: Project) -> Project:
    project.env |= {"TOKEN": SECRET, "KEY": KEY}
    project.pipeline(PIPELINE)
    (project.root / "mod.py").write_text("import os\ndef f(): raise ValueError(os.environ['TOKEN'])\n")
    return project


@pytest.mark.scenario("J9")
def test_no_channel_leaks_not_in_the_middle_not_after_a_kill_not_at_the_end(leaky: Project) -> None:
    process = leaky.spawn("run", "pipeline.yaml", "--id", "r", "--json")
    eventually((leaky.root / "leaked").exists, "everything was printed")
    check_nothing_leaked(leaky)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    check_nothing_leaked(leaky)
    (leaky.root / "go").touch()
    done = leaky.rerail("resume", "r", "--json", check=1)
    shown = [
        leaky.rerail(*command).stdout for command in (("show", "r"), ("show", "r", "--json"), ("history", "r", "--json"))
    ]

    check_nothing_leaked(leaky, done.stdout, done.stderr, *shown)
    assert "leaks: its outputs held a secret" in done.stderr
    log = (leaky.run_dir("r") / "logs" / "leaks.2.out").read_bytes()
    assert log.startswith(b"***\n***\n")
    assert log.count(b"***") >= 12
    assert leaky.json("show", "r")["steps"][2]["outputs"] == {"x": "***"}


@pytest.mark.parametrize(("value", "words"), [(None, "is not set"), ("", "is empty")])
def test_a_secret_that_is_missing_or_empty_stops_everything_before_it_starts(
    leaky: Project, value: str | None, words: str
) -> None:
    leaky.env.pop("TOKEN")
    if value is not None:
        leaky.env["TOKEN"] = value

    assert f"the secret TOKEN {words}" in leaky.rerail("run", "pipeline.yaml", check=2).stderr
    assert not (leaky.root / ".rerail" / "runs").exists()


def test_a_secret_does_not_belong_in_params_or_labels(project: Project) -> None:
    project.env["TOKEN"] = SECRET
    project.pipeline("params: {x: ''}\nsteps: [{run: 'true'}]")

    refused = project.rerail("run", "pipeline.yaml", "--secret", "TOKEN", "-p", f"x=prefix-{SECRET}", check=2)
    assert "`x` holds the secret TOKEN; secrets are taken from the environment" in refused.stderr
    assert SECRET not in refused.stderr
    project.rerail("run", "pipeline.yaml", "--secret", "TOKEN", "--label", f"a={SECRET}", check=2)
    assert not (project.root / ".rerail").exists()


def test_names_given_on_the_command_line_are_remembered(project: Project) -> None:
    project.env["TOKEN"] = SECRET
    project.pipeline("steps: [{id: a, run: 'echo $TOKEN; test -e fixed'}]")
    project.rerail("run", "pipeline.yaml", "--id", "r", "--secret", "TOKEN", check=1)
    project.rerail("resume", "r", check=1)

    check_nothing_leaked(project)


def test_half_a_secret_is_one_too(project: Project) -> None:
    long = "sk-ant-" + "0123456789abcdef" * 6
    project.env["TOKEN"] = long
    project.pipeline(
        "secrets: [TOKEN]\nsteps:\n"
        "  - {id: a, allow_failure: true, run: 'echo $(( ${{ env.TOKEN }} ))'}\n"
        "  - {id: b, allow_failure: true, run: 'echo \"$TOKEN\" >> $RERAIL_OUTPUT'}\n"
        "  - {id: c, allow_failure: true, run: 'echo \"$TOKEN x=1\" >> $RERAIL_OUTPUT'}\n"
        '  - {id: d, allow_failure: true, run: \'echo "{\\"$TOKEN\\": true}" >> $RERAIL_METRICS\'}\n'
    )
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    shown = done.stderr + project.rerail("show", "r", "--json").stdout

    for path in (project.root / ".rerail").rglob("*"):
        assert not path.is_file() or long[:20].encode() not in path.read_bytes(), path
    assert long[:20] not in shown
    assert "neither name=value nor a JSON object: '***'" in shown


def test_a_secret_in_a_param_is_refused_before_it_is_quoted(project: Project) -> None:
    project.env["TOKEN"] = SECRET
    project.pipeline("secrets: [TOKEN]\nparams: {n: {type: integer}}\nsteps: [{run: 'true'}]")
    for options in ([], ["--dry-run"]):
        refused = project.rerail("run", "pipeline.yaml", "-p", f"n={SECRET}", *options, check=2)
        assert "`n` holds the secret TOKEN; " in refused.stderr
        assert SECRET not in refused.stderr


HUGE = "".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(470))


def test_a_secret_may_be_any_bytes_and_any_size(project: Project) -> None:
    project.env |= {"ODD": "abc\udcff12345678", "HUGE": HUGE}
    project.pipeline(
        'secrets: [ODD, HUGE]\nsteps: [{id: a, run: \'echo "$ODD"; echo "$HUGE"; printf %s "$HUGE" | base64\'}]'
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    log = (project.run_dir("r") / "logs" / "a.1.out").read_bytes()

    assert b"12345678" not in log
    encoded = base64.b64encode(HUGE.encode())
    for at in range(0, len(HUGE) - 40, 20):
        assert HUGE[at : at + 40].encode() not in log
        assert encoded[at : at + 60] not in log.replace(b"\n", b"")


@pytest.mark.parametrize("where", ["labels: {a: %s}", "env: {A: %s}", "name: %s"])
def test_a_secret_does_not_belong_in_the_pipeline_file(project: Project, where: str) -> None:
    project.env["TOKEN"] = SECRET
    project.pipeline(f"secrets: [TOKEN]\n{where % repr(SECRET)}\nsteps: [{{run: 'true'}}]")
    refused = project.rerail("run", "pipeline.yaml", check=2)

    assert "pipeline.yaml:2 holds the value of the secret TOKEN; " in refused.stderr
    assert SECRET not in refused.stderr
    assert not (project.root / ".rerail" / "runs").exists()


def test_the_file_of_an_inner_pipeline_is_named_with_the_secret_in_it(project: Project) -> None:
    project.env |= {"TOKEN": SECRET, "OTHER": "something-else"}
    project.pipeline(f"steps:\n  - run: echo {SECRET}\n", name="inner.yaml")
    project.pipeline("secrets: [OTHER, TOKEN]\nsteps: [{id: a, pipeline: inner.yaml}]")

    refused = project.rerail("run", "pipeline.yaml", check=2)

    assert "inner.yaml:2 holds the value of the secret TOKEN; " in refused.stderr


def test_a_secret_too_short_to_mask_is_named(project: Project) -> None:
    project.env |= {"KEY": "x7", "LONG": "abcd"}
    project.pipeline("secrets: [KEY, LONG]\nsteps: [{id: a, run: 'true'}]", name="fine.yaml")
    project.pipeline("secrets: [KEY]\nsteps: [{id: a, run: echo x7}]", name="holds.yaml")

    done = project.rerail("run", "fine.yaml", check=0)
    refused = project.rerail("run", "holds.yaml", check=2)

    assert "the secret KEY has fewer than 4 characters: too short to mask without masking everything" in done.stderr
    assert "LONG" not in done.stderr
    words = (
        "holds.yaml:2 holds the value of the secret KEY (2 characters: too short to be masked without masking other text)"
    )
    assert words in refused.stderr


def kill_when(project: Project, process: subprocess.Popen[str], ledger: list[str]) -> None:
    eventually(lambda: project.ledger() == ledger, f"{ledger}")
    process.kill()
    process.communicate()


@pytest.mark.scenario("J4")
def test_a_secret_in_what_a_killed_attempt_counted_is_never_told(project: Project) -> None:
    secret = "sk-very-secret-0123456789"
    project.pipeline("""
secrets: [TOKEN]
steps:
  - id: a
    run: |
      printf '{"cost_usd": 5, "model": "%s", "n-%s": 1}\\n' "$TOKEN" "$TOKEN" >> "$RERAIL_METRICS"
      echo paid >> "$LEDGER"
      sleep 300
""")
    project.env["TOKEN"] = secret
    kill_when(project, project.spawn("run", "pipeline.yaml", "--id", "r"), ["paid"])
    asked = [("cost", "r", "--by", "model"), ("cost", "r", "--json"), ("show", "r", "--json"), ("plan", "r")]
    told = [project.rerail(*one) for one in asked]
    del project.env["TOKEN"]  # who only looks need not have it
    told += [project.rerail(*one) for one in asked]
    assert dollars(project) == 5
    project.rerail("mark", "r", "a", "completed", check=0)

    assert not [one.args for one in told if secret in one.stdout + one.stderr]
    assert dollars(project) == 5
    for path in project.run_dir("r").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_the_command_of_a_failure_shows_no_part_of_a_secret(project: Project) -> None:
    project.env |= {"TOKEN": "abcdefgh-IJKLMNOP-qrstuvwx"}
    project.pipeline(
        """
        secrets: [TOKEN]
        env: {HALF: "${{ env.TOKEN[:8] }}"}
        steps:
          - {id: a, run: "false ${{ env.TOKEN[9:17] }} ${{ env.TOKEN | upper }} ${{ env.HALF }} ${{ run.id }}"}
        """
    )
    done = project.rerail("run", "pipeline.yaml", "--id", "r", "--json", check=1)
    shown = project.rerail("show", "r", "a", check=0)

    texts = [done.stdout, done.stderr, shown.stdout]
    texts += [path.read_text(errors="replace") for path in (project.root / ".rerail").rglob("*") if path.is_file()]
    for text in texts:
        for part in ("abcdefgh", "IJKLMNOP", "ABCDEFGH"):
            assert part not in text
    assert "***" in shown.stdout
