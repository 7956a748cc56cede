"""Twenty secrets of every shape, printed in every form through every channel: none may be found afterwards."""

from __future__ import annotations

import base64
import html
import json
import signal
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from tests.conftest import Project, eventually
from tests.crash.figures import figure

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
