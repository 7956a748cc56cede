"""Secrets of every shape, in every form, through every channel and in every name: none may be found afterwards."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import os
import signal
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import Project, eventually
from tests.crash.figures import figure
from tests.sweeps import part

SECRETS = {
    f"S{number:02d}": text
    for number, text in enumerate(
        [
            "sk-pLaNtEd/with+odd=chars&100%",
            "correct horse battery staple",
            "it's \"quoted\" and 'quoted'",
            "пароль-密码-🔑-clé",
            "ends-with-a-newline-0123\n",
            "$(touch pwned)`touch pwned`${HOME}",
            "back\\slash\\n\\u0041\\",
            "-----BEGIN KEY-----\nAbCdEfGhIjKlMnOpQrSt\nuVwXyZ0123456789+/ab\n-----END KEY-----",
            "deadbeefcafebabe0123456789abcdef",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
            "postgres://user:p%40ss@db:5432/x?sslmode=on",
            '<xml>&amp;"secret"</xml>',
            "tab\tand\x01control\x7fcharacters",
            "x" * 40 + "middle" + "y" * 40,
            "L0ng" * 700,
            "12345678901234567",
            '{"key": "value-of-json"}',
            "  spaces around it  ",
            "*?[a-z]!#~glob-like",
            "ünïcödé-ønly-ßecret",
        ],
        1,
    )
}

SHOUT = r"""
import base64, html, json, os, shlex, subprocess, sys, time
from urllib.parse import quote, quote_plus

def every_form(text):
    raw = text.encode()
    yield text
    yield "prefix " + text + " suffix"
    yield text * 3
    yield quote(text, safe=""); yield quote_plus(text); yield quote(text, safe="").lower()
    yield json.dumps(text); yield json.dumps(text, ensure_ascii=False); yield json.dumps(json.dumps({"a": text}))
    yield raw.hex(); yield raw.hex().upper()
    for before in ("", "u:", "xx"):
        for after in ("", "\n", "tail"):
            yield base64.b64encode((before + text + after).encode()).decode()
            yield base64.urlsafe_b64encode((before + text + after).encode()).decode()
    yield subprocess.run(["base64", "-w", "10"], input=raw, capture_output=True).stdout.decode()
    yield subprocess.run(["base64"], input=b"head" + raw, capture_output=True).stdout.decode()
    yield shlex.quote(text); yield repr(text); yield html.escape(text); yield text.strip()
    yield subprocess.run(["bash", "-c", 'printf %q "$1"', "-", text], capture_output=True).stdout.decode()

for name in sorted(os.environ):
    if name[0] != "S" or not name[1:].isdigit():
        continue
    text = os.environ[name]
    for form in every_form(text):
        for stream in (sys.stdout, sys.stderr):
            stream.write(form + "\n"); stream.flush()
    for cut in range(1, len(text), 7):
        sys.stdout.write(text[:cut]); sys.stdout.flush(); sys.stdout.write(text[cut:] + "\n"); sys.stdout.flush()
    sys.stdout.write("." * 70_000 + text + "\n")
    with open(os.environ["RERAIL_OUTPUT"], "a") as out:
        out.write(json.dumps({"plain" + name: text, "deep" + name: [{text: [text]}]}) + "\n")
    with open(os.environ["RERAIL_METRICS"], "a") as out:
        out.write(json.dumps({text: 1}) + "\n" + text.replace("\n", " ") + "\n")
    with open(os.environ["RERAIL_PROGRESS"], "a") as out:
        out.write(text.replace("\n", " ") + "\n")
"""

PIPELINE = f"""
secrets: [{", ".join(SECRETS)}]
steps:
  - id: shouts
    allow_failure: true
    run: |
      python3 shout.py
      touch shouted
      while ! test -e go; do sleep 0.02; done
      exit 3
  - id: raises
    python: raises:f
    allow_failure: true
  - id: captured
    run: printf %s "$S01$S04"
    outputs: {{x: {{from: stdout}}}}
  - id: hands_out
    run: python3 shout.py >/dev/null 2>&1
  - id: expressions
    needs: [hands_out]
    allow_failure: true
    checks: ['echo ${{{{ env.S03 }}}}; false']
    run: |
      echo ${{{{ env.S03 }}}} "${{{{ env.S06 }}}}" '${{{{ env.S08 }}}}'
      cat <<EOF
      ${{{{ env.S07 }}}} ${{{{ steps.captured.outputs.x }}}}
      EOF
"""


def traces(text: str) -> set[bytes]:
    """What must be nowhere, worked out here and not by the code under test."""
    raw = text.strip().encode()
    found = {raw, raw.hex().encode(), raw.hex().upper().encode(), json.dumps(text.strip())[1:-1].encode()}
    found |= {quote(raw, safe="").encode(), quote_plus(raw).encode(), html.escape(text.strip()).encode()}
    found |= {line.encode() for line in text.splitlines() if len(line) >= 12}
    found |= {base64.b64encode(b"0" * shift + raw + b"000")[4:-8] for shift in range(3)}
    return {form for form in found if len(form) >= 8}


TRACES = {name: traces(text) for name, text in SECRETS.items()}


def check_nothing_leaked(where: str, data: bytes) -> None:
    joined = data.replace(b"\n", b"")  # base64 comes in lines
    for name, forms in TRACES.items():
        for form in forms:
            assert form not in data, f"{name}: {form!r} in {where}"
            assert b"\n" in form or form not in joined, f"{name}: {form!r} over several lines of {where}"


def check_state(root: Path) -> None:
    for path in (root / ".rerail").rglob("*"):
        if path.is_file():
            check_nothing_leaked(path.name, path.read_bytes())


@pytest.mark.scenario("J9")
def test_no_secret_is_found_in_the_state_or_on_the_screen(project: Project) -> None:
    project.env |= SECRETS
    project.pipeline(PIPELINE)
    (project.root / "shout.py").write_text(SHOUT)
    (project.root / "raises.py").write_text(
        "import os\ndef f(): raise ValueError(*[os.environ[n] for n in os.environ if n[0] == 'S' and n[1:].isdigit()])\n"
    )
    process = project.spawn("run", "pipeline.yaml", "--id", "r", "--json")
    eventually((project.root / "shouted").exists, "everything was printed once")
    check_state(project.root)
    process.send_signal(signal.SIGKILL)
    killed_out, killed_err = process.communicate()
    check_state(project.root)
    (project.root / "go").touch()
    done = project.rerail("resume", "r", check=0)

    check_state(project.root)
    for what in (killed_out, killed_err, done.stdout, done.stderr):
        check_nothing_leaked("the screen", what.encode())
    for command in (("show", "r"), ("show", "r", "--json"), ("history", "r"), ("list",), ("list", "--json")):
        check_nothing_leaked(" ".join(command), project.rerail(*command, check=0).stdout.encode())
    log = (project.run_dir("r") / "logs" / "shouts.2.out").read_bytes()
    assert log.count(b"***") > 20 * 25
    figure("T13", "planted secrets, none of them found in what was written or shown", len(SECRETS))
    assert not (project.root / "pwned").exists()


# A random pipeline: the secret, in a form that is drawn, in every kind of name, path, key, value and message.

FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "within": lambda text: f"a-{text}-z",
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64url": lambda text: base64.urlsafe_b64encode(f"xx{text}".encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "quoted": lambda text: quote(text, safe=""),
    "json": lambda text: json.dumps(text)[1:-1],
}

HELPERS = """
import json, os

def raises(text):
    # Not a text of which something was left out: that is no form of the secret any more, and nobody could know it.
    raise type("E" + text if text.isalnum() else "Error", (ValueError,), {})(text)

def hands(text):
    return {text: text, "deep": [{text: [text]}], "number": int(text) if text.isdigit() else 0}

def counts(text):
    with open(os.environ["RERAIL_METRICS"], "a") as out:
        out.write(json.dumps({"m-" + text: 1, "cost_usd": 0.5}) + "\\n" + json.dumps({"model": text, "tokens": 7}) + "\\n")
        out.write(json.dumps({"number": int(text) if text.isdigit() else 1}) + "\\n")
"""

KILLS = "test -e killed || { touch killed; kill -KILL $PPID; sleep 600; }"


def make(path: str) -> str:
    return f'mkdir -p "$(dirname "{path}")"; echo made > "{path}"'


# What a step is, given the name of the variable that holds the planted text.
PLANTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "says": lambda v: {"run": f'echo "${v}"; echo "${v}" >&2; echo "${v}" >> "$RERAIL_PROGRESS"'},
    "fails": lambda v: {"run": f'echo "${v}" >&2; exit 3', "env": {"A": f"${{{{ env.{v} }}}}"}},
    "tries": lambda v: {"run": f'echo "${v}" >&2; exit 3', "retry": {"attempts": 2, "delay": 0.01}},
    "raises": lambda v: {"python": "helpers:raises", "with": {"text": f"${{{{ env.{v} }}}}"}},
    "hands": lambda v: {"python": "helpers:hands", "with": {"text": f"${{{{ env.{v} }}}}"}},
    "counts": lambda v: {"python": "helpers:counts", "with": {"text": f"${{{{ env.{v} }}}}"}},
    "mumbles": lambda v: {"run": f'echo "${v} =" >> "$RERAIL_OUTPUT"; echo "{{${v}" >> "$RERAIL_METRICS"'},
    "captured": lambda v: {"run": f'printf %s "${v}"', "outputs": {"x": {"from": "stdout"}}},
    "checked": lambda v: {"run": "true", "checks": [f"echo ${{{{ env.{v} }}}}; false"]},
    "calculates": lambda v: {"run": f"exit $(( ${{{{ env.{v} }}}} ))"},
    "evaluates": lambda v: {"run": f"echo ${{{{ steps.says.outputs[env.{v}] }}}}", "needs": ["says"]},
    "elsewhere": lambda v: {"run": "true", "cwd": f"${{{{ env.{v} }}}}"},
    "skipped": lambda v: {"run": "true", "when": f'env.{v} == "something else"'},
    "written": lambda v: {"write": {"path": f"written/${{{{ env.{v} }}}}", "content": f"${{{{ env.{v} }}}}"}},
    "named": lambda v: {"run": make(f"named/${v}"), "artifacts": [f"named/${{{{ env.{v} }}}}"]},
    "missing": lambda v: {"run": "true", "artifacts": [f"nowhere/${{{{ env.{v} }}}}"]},
    "tree": lambda v: {"run": make(f"tree/${v}.txt"), "artifacts": ["tree"]},
    "empty": lambda v: {"run": f'mkdir -p "dirs/${v}"; echo x > dirs/x', "artifacts": ["dirs"]},
    "linked": lambda v: {"run": f'mkdir -p links; echo x > links/x; ln -s "${v}" links/l', "artifacts": ["links"]},
    "matched": lambda v: {"run": make(f"matched/${v}"), "artifacts": ["matched/**"]},
    "reads": lambda v: {"run": "true", "inputs": [f"read/${{{{ env.{v} }}}}"]},
    "optional": lambda v: {"run": "true", "inputs": [{"path": f"read/${{{{ env.{v} }}}}", "optional": True}]},
    "content": lambda v: {"run": f'mkdir -p c; echo "${v}" > c/text; echo x > c/x', "artifacts": ["c"]},
    "large": lambda v: {"run": f'(head -c 3000000 /dev/zero; echo "${v}") > large', "artifacts": ["large"]},
    "good": lambda v: {
        "run": "mkdir -p good/d; echo a > good/a; echo b > good/b; echo c > good/d/c",
        "artifacts": ["good"],
    },
    "lines": lambda v: {"map": {"over": {"lines": "lines.txt"}}, "steps": [{"run": "echo ${{ item }}"}]},
    "listed": lambda v: {"map": {"over": {"command": f'echo "${v}"'}}, "steps": [{"run": "echo ${{ item }}"}]},
    "keyed": lambda v: {
        "map": {"over": ["a", "b"], "key": f"${{{{ item }}}}-${{{{ env.{v} }}}}"},
        "steps": [{"run": "true"}],
    },
    "twice": lambda v: {"map": {"over": ["a", "b"], "key": f"${{{{ env.{v} }}}}"}, "steps": [{"run": "true"}]},
    "items": lambda v: {
        "map": {"over": ["a", "b"]},
        "steps": [{"run": f'echo "${v}" >&2; test ${{{{ item }}}} = a'}],
    },
    "results": lambda v: {
        "map": {"over": ["a", "b"]},
        "steps": [{"run": f'printf %s "${v}"', "outputs": {"x": {"from": "stdout"}}}],
    },
    "loops": lambda v: {
        "loop": {"max_iterations": 3, "until": f"steps.inner.outputs.x == env.{v}"},
        "steps": [{"id": "inner", "run": f'printf %s "${v}"', "outputs": {"x": {"from": "stdout"}}}],
    },
}

BEFORE: list[list[str]] = [
    ["resume", "r", "--dry-run"],
    ["show", "r"],
    ["resume", "r", "--parallel", "4"],
    ["verify", "r"],
]
AFTER: list[list[str]] = [
    ["resume", "r", "--dry-run"],
    ["plan", "r", "--json"],
    ["verify", "r", "--json"],
    ["verify", "r"],
    ["mark", "r", "fails", "failed"],
    ["resume", "r", "--json"],
    ["resume", "r", "--no-restore"],
    ["show", "r"],
    ["show", "r", "--json"],
    ["history", "r"],
    ["history", "r", "--json"],
    ["logs", "r"],
    ["cost", "r", "--json"],
    ["list", "--json"],
    ["dlq", "list", "r", "--json"],
    ["fork", "r", "--from", "asks", "--id", "f", "-q"],
    ["show", "f", "--json"],
]

# One interpreter for all commands: what they take is mostly starting.
DRIVER = """
import json, os, sys
from rerail.cli.main import call
for arguments in json.loads(sys.argv[1]):
    for stream in (1, 2):
        os.write(stream, ("$ " + " ".join(arguments[:2]) + "\\n").encode(errors="replace"))
    code = call(arguments)
    sys.stdout.flush()
    os.write(2, f"[exit {code}]\\n".encode())
    assert code != 70, arguments
"""


def _is_unlikely(text: str) -> bool:
    """Whether this is in no number or path by chance, as twelve nines or zeros are."""
    return len(set(text)) > 4


_core = st.text(string.ascii_letters + string.digits, min_size=12, max_size=20).filter(_is_unlikely)
_secrets = st.one_of(
    _core,
    st.text("123456789", min_size=12, max_size=16).filter(_is_unlikely),
    _core.map(lambda core: f'it\'s "{core}" & <b>'),
    _core.map(lambda core: f"dir/{core}+%=="),
    _core.map(lambda core: f"ключ-{core}-🔑"),
    _core.map(lambda core: f"{core}\n{core[::-1]}"),
    _core.map(lambda core: f"a\\{core}\\n$HOME"),
)


def check_secret_is_nowhere(secret: str, where: str, data: bytes) -> None:
    for form in traces(secret):
        assert form not in data, f"{form!r} in {where}: …{data[max(data.index(form) - 200, 0) :][:500]!r}"


def check_whole_state(secret: str, root: Path) -> None:
    for path in (root / ".rerail").rglob("*"):
        check_secret_is_nowhere(secret, "a name", os.fsencode(path.relative_to(root)))
        if path.is_symlink():
            check_secret_is_nowhere(secret, str(path), os.fsencode(os.readlink(path)))
        elif path.is_file():
            with contextlib.suppress(FileNotFoundError):
                check_secret_is_nowhere(secret, str(path), path.read_bytes())


def check_memory(secret: str) -> None:
    """What attempts have handed over is raw as long as it is not taken up; then it is gone."""
    for path in Path("/dev/shm").glob(f"rerail-{os.getuid()}-*/**/*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                check_secret_is_nowhere(secret, str(path), path.read_bytes())


@pytest.mark.scenario("J9")
@settings(
    max_examples=int(os.environ.get("RERAIL_PLANTED", part(1, 4))),
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # an example takes seconds: what failed is told as it was
)
@given(_secrets, st.data())
def test_a_secret_planted_anywhere_in_a_random_pipeline_is_nowhere_afterwards(secret: str, data: st.DataObject) -> None:
    forms = {name: data.draw(st.sampled_from(sorted(FORMS)), label=name) for name in PLANTS}
    steps: list[dict[str, Any]] = [
        {"id": name, "needs": [], "allow_failure": True, **PLANTS[name](f"F_{form}")} for name, form in forms.items()
    ]
    steps.insert(data.draw(st.integers(0, len(steps)), label="killed after"), {"id": "kills", "needs": [], "run": KILLS})
    steps.append({"id": "asks", "needs": ["good"], "approve": "${{ env.F_within }}?"})
    with tempfile.TemporaryDirectory() as directory:
        project = Project(Path(directory))
        try:
            project.env |= {"TOK": secret} | {f"F_{name}": form(secret) for name, form in FORMS.items()}
            project.pipeline(json.dumps({"secrets": ["TOK"], "steps": steps}))
            (project.root / "helpers.py").write_text(HELPERS)
            (project.root / "lines.txt").write_text(f"a\n{FORMS[forms['lines']](secret)}\n")
            killed = project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "4", "--json")
            assert killed.returncode == -signal.SIGKILL, killed.stderr
            check_secret_is_nowhere(secret, "what was said", (killed.stdout + killed.stderr).encode())
            check_whole_state(secret, project.root)
            _command(project, secret, BEFORE)
            _tamper(project.root, secret, data)
            _command(project, secret, [*AFTER, ["approve", "r", "asks", "-m", secret], ["resume", "r"], ["history", "r"]])
            check_memory(secret)
        finally:
            project.close()


def _command(project: Project, secret: str, commands: list[list[str]]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(commands)],
        cwd=project.root,
        env=project.env,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:].decode()
    check_secret_is_nowhere(secret, "what was said", done.stderr)
    check_secret_is_nowhere(secret, "what was printed", done.stdout)
    check_whole_state(secret, project.root)


def _tamper(root: Path, secret: str, data: st.DataObject) -> None:
    """Break what was sealed, in names and contents that hold the secret."""
    how = data.draw(
        st.sampled_from(["nothing", "a file is gone", "a directory is in its place", "its content", "a link"])
    )
    name = secret.replace("/", "-")
    (root / "good" / "a").unlink(missing_ok=True)
    if how == "a directory is in its place":
        (root / "good" / "a" / name).mkdir(parents=True)
    elif how == "its content":
        (root / "good" / "a").write_text(secret)
    elif how == "a link":
        (root / "good" / "a").symlink_to(name)
    elif how == "nothing":
        (root / "good" / "a").write_text("a\n")
        (root / "good" / name).write_text("new")


def _escaped(text: str) -> str:
    return "".join(f"\\u{ord(char):04x}" for char in text)


@pytest.mark.parametrize(
    ("pipeline", "options"),
    [
        ('{{"secrets": ["TOK"], "steps": [{{"id": "{0}", "run": "true"}}]}}', []),
        ('{{"secrets": ["TOK"], "steps": [{{"id": "{1}", "run": "true"}}]}}', []),
        ('{{"secrets": ["TOK"], "name": "{1}", "steps": [{{"run": "true"}}]}}', []),
        ('{{"secrets": ["TOK"], "labels": {{"{1}": "x"}}, "steps": [{{"run": "true"}}]}}', []),
        ('{{"secrets": ["TOK"], "params": {{"x": "{1}"}}, "steps": [{{"run": "true"}}]}}', []),
        ('{{"secrets": ["TOK"], "steps": [{{"id": "not {1} an id", "run": "true", "{0}": 1}}]}}', []),
        ('{{"secrets": ["TOK"], "steps": [{{"run": "true"}}]}}', ["--label", "{0}=x"]),
        ('{{"secrets": ["TOK"], "steps": [{{"run": "true"}}]}}', ["-p", "{0}=x"]),
        ('{{"secrets": ["TOK"], "steps": [{{"run": "true"}}]}}', ["--id", "{0}"]),
        ('{{"secrets": ["TOK"], "steps": [{{"run": "true"}}]}}', ["--secret", "X_{0}"]),
        ('{{"secrets": ["TOK"], "steps": [{{"run": "true"}}]}}', ["--store", "../{0}/.rerail"]),
    ],
)
def test_a_secret_in_a_name_that_would_be_recorded_is_refused(
    project: Project, pipeline: str, options: list[str]
) -> None:
    secret = "pLaNtEd0123456789"
    project.env |= {"TOK": secret, f"X_{secret}": "something"}
    project.pipeline(pipeline.format(secret, _escaped(secret)))
    for more in ([], ["--dry-run"]):
        done = project.rerail("run", "pipeline.yaml", *(option.format(secret) for option in options), *more)
        assert done.returncode == 2 or more, done.stderr
        check_secret_is_nowhere(secret, "the screen", (done.stdout + done.stderr).encode())
    assert not list((project.root.parent).rglob("run.json"))


def test_a_pipeline_file_whose_name_holds_a_secret_is_refused(project: Project) -> None:
    secret = "pLaNtEd0123456789"
    project.env["TOK"] = secret
    project.pipeline("secrets: [TOK]\nsteps: [{run: 'true'}]", f"{secret}.yaml")

    assert "holds the secret TOK" in project.rerail("run", f"{secret}.yaml", check=2).stderr
    assert not list(project.root.rglob("run.json"))


def test_what_holds_a_secret_is_not_moved_into_the_state(project: Project) -> None:
    project.env["TOK"] = secret = "pLaNtEd0123456789"
    project.pipeline(
        "secrets: [TOK]\nsteps:\n"
        "  - {id: a, run: 'mkdir -p out; echo a > out/a', artifacts: [{path: out, keep: false}]}\n"
        "  - {id: b, run: test -e go}\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "out" / "a").write_text(f"token={secret}\n")
    refused = project.rerail("resume", "r", check=6)

    assert "it holds a secret" in refused.stderr
    assert (project.root / "out" / "a").read_text() == f"token={secret}\n"
    check_whole_state(secret, project.root)
    (project.root / "out" / "a").rename(project.root / "mine")
    (project.root / "go").touch()
    project.rerail("resume", "r", check=0)
    check_whole_state(secret, project.root)


@pytest.mark.parametrize(
    ("make_it", "artifacts", "words"),
    [
        ('mkdir out; echo x > "out/$TOK"', "[out]", "artifact out: the name out/*** holds a secret"),
        (
            'mkdir -p out/x; ln -s "/srv/$TOK" out/x/l',
            "[out]",
            "artifact out: where the link out/x/l leads holds a secret",
        ),
        ('mkdir -p "out/$TOK"', '["out/*"]', "artifact out/*: the name out/*** holds a secret"),
        ('echo x > "f-$TOK"', '["f-${{ env.TOK }}"]', "artifact f-***: the name f-*** holds a secret"),
        ("'true'", '["${{ env.TOK }}/x"]', "artifact ***/x is missing"),
    ],
)
def test_sealing_refuses_a_name_that_holds_a_secret(project: Project, make_it: str, artifacts: str, words: str) -> None:
    project.env["TOK"] = secret = "pLaNtEd0123456789"
    project.pipeline(f"secrets: [TOK]\nsteps:\n  - id: a\n    run: {make_it}\n    artifacts: {artifacts}\n")
    failed = project.rerail("run", "pipeline.yaml", "--id", "r", "--json", check=1)

    assert words in failed.stderr
    assert project.json("show", "r")["steps"][0]["error"]["type"] == "ArtifactInvalid"
    check_secret_is_nowhere(secret, "the screen", (failed.stdout + failed.stderr).encode())
    check_whole_state(secret, project.root)


def test_a_metric_that_is_a_secret_is_left_out(project: Project) -> None:
    project.env["TOK"] = secret = "481516234200"
    project.pipeline(
        'secrets: [TOK]\nsteps:\n  - {id: a, run: \'echo "{\\"n\\": $TOK, \\"cost_usd\\": 2}" >> $RERAIL_METRICS\'}\n'
    )
    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert "a: a metric held a secret and is not counted" in done.stderr
    assert project.json("show", "r")["steps"][0]["metrics"] == {"cost_usd": 2}
    check_whole_state(secret, project.root)
    assert "is intact" in project.rerail("verify", "r", check=0).stderr
