"""Values into shell text, judged by real shells: any text, in any place, arrives byte for byte, and nothing runs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rerail.core.expressions import placeholders
from rerail.core.shell import lexer, quoting
from tests.sweeps import part

SHELLS = [shell for shell in ("bash", "dash", "busybox") if shutil.which(shell)]
COMMANDS = {"busybox": ("busybox", "sh")}
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40) | st.lists(
    st.sampled_from("'\"$`\\ \n\t*?[]{}()<>|&;!#~=-EOF aé\U0001f600"), max_size=25
).map("".join)

# Every template prints its value between brackets; V stands for the expression.
PLACES = {
    "bare": "printf '[%s]' V",
    "bare, glued": "printf '[%s]' ''V''",
    "double": "printf '[%s]' \"V\"",
    "double, glued": "printf '%s' \"[V]\"",
    "single": "printf '%s' '[V]'",
    "assignment": "x=V; printf '[%s]' \"$x\"",
    "substitution": "x=$(printf '[%s]' V); printf '%s' \"$x\"",
    "quoted substitution": "printf '%s' \"$(printf '[%s]' \"V\")\"",
    "bare in quoted substitution": "printf '%s' \"$(printf '[%s]' V)\"",
    "nested twice": "printf '%s' \"$(printf '%s' \"$(printf '[%s]' 'V')\")\"",
    "here-document": "cat <<EOF\n[V]\nEOF\n",
    "here-document with tabs": "cat <<-EOF\n\t[V]\n\tEOF\n",
    "substitution in here-document": "cat <<EOF\n$(printf '[%s]' V)\nEOF\n",
    "two here-documents": "cat <<A >/dev/null; cat <<B\nx\nA\n[V]\nB\n",
    "default": "printf '[%s]' \"${unset_:-V}\"",
    "bare default": "printf '[%s]' ${unset_:-V}",
    "case word": "case V in *) printf '[%s]' V;; esac",
    "case in substitution": "printf '%s' \"$(case a in (a) printf '[%s]' V;; esac)\"",
    "case in substitution, unbalanced": "printf '%s' \"$(case a in a) printf '[%s]' V;; esac)\"",
    "function": "f() { printf '[%s]' \"$1\"; }\nf V",
    "subshell": "( printf '[%s]' V )",
    "pipe": "printf '[%s]' V | cat",
    "after comment": "# it's a \"trap\nprintf '[%s]' V",
    "after escaped quote": "printf '%s' it\\'s >/dev/null; printf '[%s]' V",
    "after arithmetic": "x=$(( (1 + 2) * 3 )); printf '[%s]' V",
    "after braces": "x=${HOME#*/}; printf '[%s]' V",
    "continued line": "printf \\\n  '[%s]' \\\n  V",
    "in a loop": "for x in V; do printf '[%s]' \"$x\"; done",
    "in a condition": "if test -n x; then printf '[%s]' V; fi",
    "case in braces in substitution": "printf '%s' \"$({ case a in a) printf '[%s]' V;; esac; })\"",
    "after a comment on a continued line": "true \\\n# it's a comment\nprintf '[%s]' V",
    "after a here-document with a continued line": "cat <<EOF >/dev/null\na \\\nEOF\nb\nEOF\nprintf '[%s]' V",
    "after the process number": "printf '%s' $$'\\' >/dev/null; printf '[%s]' V",
    "subshell in substitution": "printf '%s' \"$( (printf '[%s]' V); true)\"",
}
BASH_PLACES = {
    "ansi": "printf '%s' $'['$'V'']'",
    "here-string": "x=$(cat <<< V; printf x); x=${x%x}; printf '[%s]' \"${x%?}\"",
    "array": "a=(one V); printf '[%s]' \"${a[1]}\"",
    "test": "[[ V == * ]] && printf '[%s]' V",
    "after arithmetic command": "((1 + 1)); printf '[%s]' V",
    "process substitution": "cat <(printf '[%s]' V)",
    "subshell at once in substitution": "printf '%s' \"$((printf '[%s]' V); true)\"",
    "after a shift in braces": "{ ((x=1<<2)); }; printf '[%s]' V",
    "after a shift in a function": "f() { ((x=1<<2)); }; f; printf '[%s]' V",
    "after a shift in function syntax": "function f { ((x=1<<2)); }; f; printf '[%s]' V",
    "after a shift in old arithmetic": "x=$[1<<2]; printf '[%s]' V",
    "after a shift in a subscript": "a[1<<2]=1; printf '[%s]' V",
}


def deliver(template: str, value: str, shell: str, cwd: Path | None = None) -> bytes:
    pieces = placeholders.split(template.replace("V", "${{ v }}"))
    literals = [literal for literal, _, _ in pieces]
    places = lexer.slots(literals)
    script, variables = quoting.fill(places, [value] * len(places.slots))
    done = subprocess.run(
        [*COMMANDS.get(shell, (shell,)), "-e", "-c", script],
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere", "LC_ALL": "C.UTF-8", **variables},
        capture_output=True,
        cwd=cwd,
        check=False,
    )
    assert done.returncode == 0, (script, done.stderr)
    return done.stdout


@pytest.mark.scenario("J7")
@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=part(2, 12), deadline=None)
@given(value=TEXTS)
@example(value="$(touch pwned)`touch pwned`;touch pwned\n'\"\\")
@example(value="")
@example(value="-n")
@example(value="a[$(touch pwned)]")
@example(value="EOF\nA\nB\n")
def test_any_value_in_any_place_arrives_unharmed(shell: str, value: str) -> None:
    for name, template in {**PLACES, **(BASH_PLACES if shell == "bash" else {})}.items():
        try:
            out = deliver(template, value, shell).decode()
        except quoting.ValueRefused:  # only what could run, and only where something is calculated
            assert re.search(r"\w\[.*(\$\(|`|\$\{)", value, re.DOTALL)
            assert re.search(r"\(\(|\[\[|\w\[|=\(|\$\[|read", template)
            continue
        assert (out.removesuffix("\n") if "document" in name else out) == f"[{value}]", name


@pytest.mark.scenario("J7")
@pytest.mark.parametrize("shell", SHELLS)
def test_nothing_in_a_value_is_executed(shell: str, tmp_path: Path) -> None:
    for payload in ("$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"; touch pwned; "', "a[$(touch pwned)]",
                    "\ntouch pwned\n", "${x:-$(touch pwned)}", "x); touch pwned; (", "}; touch pwned; {"):  # fmt: skip
        for template in PLACES.values():
            with contextlib.suppress(quoting.ValueRefused):
                deliver(template, payload, shell, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=part(4, 40))
@given(value=TEXTS)
@example(value="EOF")
@example(value="x\nEOF\ntouch pwned")
@example(value="\ttabs\n\tEOF")
def test_a_quoted_here_document_holds_any_value_and_nothing_else_is_expanded(shell: str, value: str) -> None:
    around = "$HOME `x` \\\\ \\n $(y) \"q\" 'p' \\"
    for opening in ("<<'EOF'", '<<"EOF"', "<<\\EOF", "<<-'EOF'"):
        assert deliver(f"cat {opening}\n{around}\n[V]{around}\nEOF\n", value, shell).decode() == (
            f"{around}\n[{value}]{around}\n"
        )


@pytest.mark.parametrize(
    "template",
    ["echo $((V + 1))", "echo $(( (V) ))", "((x = V))", "if (( V > 1 )); then :; fi", "echo ${a[V]}", "echo ${x:V:2}",
     "[[ V -gt 3 ]]", "[[ 3 -le V ]]", '[[ "V" -gt 3 ]]', "[[ a == a &&\n'V' -gt 1 ]]", "a[V]=1", "echo $[V+1]",
     "echo $(( ${x:-V} ))", 'echo $(( $(printf %s "V") ))', "echo ${x:${y:-V}}", "let x=V", "declare -i x=V", "echo ${!y:V}"],
)  # fmt: skip
def test_only_numbers_stand_where_the_shell_calculates(template: str) -> None:
    literals = [literal for literal, _, _ in placeholders.split(template.replace("V", "${{ v }}"))]
    places = lexer.slots(literals)

    assert places.slots == ["arithmetic"]
    assert quoting.fill(places, ["12"])[0] == template.replace("V", "12")
    for bad in ("a[$(id)]", "1; id", "x", "", "1.5", "9" * 30, str(2**63)):
        with pytest.raises(ValueError, match="whole number"):
            quoting.fill(places, [bad])


@pytest.mark.parametrize(
    "template",
    [
        "echo `V`",
        "echo ${V}",
        "echo ${#V}",
        "cat <<V\nx\n",
        "x=`a \\` V`",
        "echo \\V",
        "unset V",
        "read V",
        "printf -v V x",
        "test -v V",
        "declare V=1",
        "cat <<$'EOF'\nhi\nEOF\necho V",
        'cat <<"E\\"F"\nx\nE"F\necho V',
    ],
)
def test_places_where_nothing_can_be_delivered_are_refused(template: str) -> None:
    literals = [literal for literal, _, _ in placeholders.split(template.replace("V", "${{ v }}"))]

    with pytest.raises(lexer.NotAllowedHere):
        lexer.slots(literals)


# Scripts in which an attacker found that a lexer may lose its way; V is a value that would run if it were evaluated.
TRICKY = [
    "x=$(cat <<'EOF'\nhi\nEOF)\necho \"V\"",
    "cat <<E\\\nOF\nhi\nEOF\nprintf %s V",
    "cat <<'A' $(echo /dev/null\nprintf %s V >&2)\nbody\nA",
    "x=$(# see <<'E'\nprintf y)\nprintf %s V",
    'echo $( ((x=1<<"1")) )\nprintf %s V',
    'time -p ((x=1<<"1"))\nprintf %s V',
    'a[x[0]+1<<"1"]=3\nprintf %s V',
    'a=([1<<"1"]=3)\nprintf %s V',
    "if true; then let n=V; fi",
    "for i in 1; do let n=V; done",
    'if let "n=V"; then :; fi',
    'let "x = (1 + V)"',
    'let "f=1|V"',
    "let \\\n n=V",
    "X=1 let n=V",
    "command let n=V",
    "if true; then declare -i n=V; fi",
    "declare -i n; n=V",
    "RANDOM=V",
    "OPTIND=V",
    "[[ x =~ ^[[:alpha:]]+$ && V -eq 1 ]]",
    "[[ ${a[b[0]]} -eq V ]]",
    '[[ -n "]]" && 1 -eq V ]]',
    "arr[${#arr[@]}-V]=x",
    "arr[b[0]+V]=1",
    "a=([V]=1)",
    "x+=([V]=2)",
    "echo ${x[i[0]]:V}",
    "echo $[ b[0] + ${x:-V} ]",
    "x=$( ((n=V)) )",
    "x=$(if ((n=V)); then :; fi)",
    "time -p ((V))",
    "coproc ((V))",
    'test -v "V"',
    '[[ -v "V" ]]',
    "[ -v 'V' ]",
    'printf -v "V" x',
    "IFS= read -r V <<< x",
    "while read -r V; do break; done <<< x",
    'if read "V" <<< x; then :; fi',
    "wait -p V",
    "declare -n r=V; echo $r",
    'declare "foo_V=1"',
    'f() { local "foo_V=1"; }; f',
    "read foo_V <<< x",
    "printf -v pre_V x",
    "declare -a foo=V",
    "foo=(1); declare foo=V",
    "declare -A foo=V",
    "unset 'V'",
    "echo $((x-V))",
    "${x:V}",
    'n=V; echo "${PATH:0:$n}"',
    'n=V; echo "${PATH:n}" "${@:n}"',
    'f() { echo "${1:0:$2}"; }; f hello V',
    'n=V; echo "${!n}"',
    "set -- V; echo ${!1}",
    'declare -A m; k=V; m[$k]=1; unset "m[$k]"',
    'declare -A m; k=V; printf -v "m[$k]" x',
    'declare -A m; k=V; let "m[$k]+=1"',
    'k=V; read -r "v[$k]" <<< hi',
    'k=V; declare -a arr; declare "arr[$k]=1"',
    'k=V; test -v "m[$k]"',
    "n=V; echo ${n@P}",
]
PAYLOADS = ["a[$(touch pwned)]", "$(touch pwned)", "x[$(touch pwned)]", "[$(touch pwned)]", "($(touch pwned))",
            "([$(touch pwned)]=1)", "1+a[`touch pwned`]", "';touch pwned;'", "`touch pwned`", "b[0]+a[$(touch pwned)]",
            "(<(touch pwned))"]  # fmt: skip


@pytest.mark.sweep(12)
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("template", TRICKY)
def test_whatever_the_lexer_makes_of_a_script_no_value_runs(template: str, shell: str, tmp_path: Path) -> None:
    literals = [literal for literal, _, _ in placeholders.split(template.replace("V", "${{ v }}"))]
    for payload in PAYLOADS:
        try:
            places = lexer.slots(literals)
            script, variables = quoting.fill(places, [payload] * len(places.slots))
        except ValueError:
            continue
        env = {"PATH": os.environ["PATH"], "HOME": "/nowhere", **variables}
        command = [*COMMANDS.get(shell, (shell,)), "-c", script]
        subprocess.run(command, env=env, capture_output=True, cwd=tmp_path, check=False, timeout=20)
        assert list(tmp_path.iterdir()) == [], payload


EVERYDAY = {
    "export, quoted": 'export FOO="V"; printf \'[%s]\' "$FOO"',
    "export, single": "export FOO='V'; printf '[%s]' \"$FOO\"",
    "export, bare": "export FOO=V; printf '[%s]' \"$FOO\"",
    "text that looks like commands": "printf '[%s]' \"V\" 'You plan.\nread this\nlet it be\nexport x' > o; head -c -36 o || cat o",
    "after an array": "set -- a b; printf '[%s]' V",
    "brackets in text": "printf '%s' \"[V]\"",
    "quotes in a pattern": "x='a\"b'; y=\"${x%'\"'*}\"; printf '[%s]' 'V'",
    "comment in substitution": "x=$(# don't\nprintf '[%s]' V); printf '%s' \"$x\"",
    "case in a subshell in substitution": "printf '%s' \"$( (case x in x) true;; esac); printf '[%s]' V )\"",
    "a variable called case": "printf '%s' \"$(for case in a; do true; done)\"; printf '[%s]' V",
    "case in nested substitution": "printf '%s' \"$(printf %s \"$(case a in a) printf '[%s]' V;; esac)\")\"",
    "text after a line read": "while read -r l; do printf '[%s]' V; done <<X\nx\nX\n",
}


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=part(2, 8))
@given(value=TEXTS)
@example(value="$(touch pwned)")
@example(value="007")
def test_everyday_scripts_take_any_value(shell: str, value: str) -> None:
    for name, template in EVERYDAY.items():
        if name == "text that looks like commands":
            continue
        try:
            assert deliver(template, value, shell).decode() == f"[{value}]", name
        except quoting.ValueRefused:
            assert re.search(r"\w\[.*(\$\(|`|\$\{)", value, re.DOTALL)


@pytest.mark.parametrize("shell", SHELLS)
def test_text_is_not_altered_where_nothing_is_calculated(shell: str) -> None:
    assert deliver('echo "price: $V"', "5", shell) == b"price: $5\n"
    assert deliver("echo \\$V", "5", shell) == b"$5\n"
    assert deliver('echo "release[V]"', "007", shell) == b"release[007]\n"
    assert deliver("cat <<EOF\nlet V be\nread V\nm[V]\nEOF\n", "007", shell) == b"let 007 be\nread 007\nm[007]\n"
    assert deliver("echo 'let me read V'", "x y", shell) == b"let me read x y\n"
    assert deliver("echo $((3-V))", "-5", shell) == b"8\n"


PROSE = [
    "items[0] crashes in `parse()`",
    "dict[str, int] is wrong, see `Foo`",
    "config[key] raises; run `make`",
    'x["a"] `b`',
    "arr[0]=1 # set `arr`",
    "a[i] = $(foo)",
    "[`code`](url) and $(more)",
    "- [ ] run `make test`\n- [x] done",
    "(see `this`)",
    '{"a": ["$(x)", "`y`"]}',
    "for i in range(3):\n    a[i] = f`x`",
]


@pytest.mark.parametrize("value", PROSE)
def test_prose_and_code_are_no_danger(value: str) -> None:
    for script in (
        "export LANG=C; printf '[%s]' V",
        "while read -r l; do :; done </dev/null; echo $((1 + 1)) >/dev/null; printf '[%s]' \"V\"",
    ):
        assert deliver(script, value, "bash").decode() == f"[{value}]"


def test_bash_counts_from_the_end() -> None:
    assert deliver("s=hello; echo ${s:V}", "-3", "bash") == b"llo\n"
    assert deliver("[[ '#' =~ ^(#|V) ]] && echo yes", "x", "bash") == b"yes\n"
    assert deliver('read -r a b <<< "V"; echo "$b $a"', "one two", "bash") == b"two one\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_numbers_in_arithmetic_are_decimal(shell: str) -> None:
    assert deliver("printf %s $((V + 1))", "010", shell) == b"11"
    assert deliver("printf %s $((V + 1))", "08", shell) == b"9"
    assert deliver("printf %s $((0 - V))", "-0", shell) == b"0"


# Every place where a number may stand, and what it makes of it.
NUMBERS: dict[str, Callable[[int], int]] = {
    "echo $((V))": lambda n: n,
    "echo $(( V + 1 ))": lambda n: n + 1,
    "echo $((1+V))": lambda n: 1 + n,
    "echo $((1-V))": lambda n: 1 - n,
    "echo $((-V))": lambda n: -n,
    "echo $((V-1))": lambda n: n - 1,
    "echo $((3*V))": lambda n: 3 * n,
    "echo $((1?V:0))": lambda n: n,
    "echo $((0?1:V))": lambda n: n,
    "echo $(( ${x:-V} ))": lambda n: n,
    "echo $(( ${x-V} ))": lambda n: n,
    'echo "$((V))"': lambda n: n,
    "cat <<EOF\n$((V))\nEOF": lambda n: n,
    "n=V; echo $((n))": lambda n: n,
    "echo V": lambda n: n,
}
BASH_NUMBERS: dict[str, Callable[[int], int]] = {
    "echo $[V]": lambda n: n,
    "echo $[1-V]": lambda n: 1 - n,
    "let x=V || :; echo $x": lambda n: n,
    "let x=1-V || :; echo $x": lambda n: 1 - n,
    "let x=1?V:0 || :; echo $x": lambda n: n,
    "let x=0?1:V || :; echo $x": lambda n: n,
    "let 'x = 1 - V' || :; echo $x": lambda n: 1 - n,
    "((x = V)) || :; echo $x": lambda n: n,
    "((x=1-V)) || :; echo $x": lambda n: 1 - n,
    "declare -i x=V; echo $x": lambda n: n,
    "if [[ V -lt 0 ]]; then echo 1; else echo 0; fi": lambda n: int(n < 0),
    "if [[ 0 -gt 'V' ]]; then echo 1; else echo 0; fi": lambda n: int(n < 0),
    "n=V; if (( n < 0 )); then echo 1; else echo 0; fi": lambda n: int(n < 0),
    "for ((i=V; i<=V; i++)); do echo $i; done": lambda n: n,
    "x=0123456789; echo ${x:V:1}": lambda n: range(10)[n],
    "x=(0 1 2 3 4 5 6 7 8 9); echo ${x[V]}": lambda n: range(10)[n],
    "x=(0 1 2 3 4 5 6 7 8 9); echo ${x[@]:V:1}": lambda n: range(10)[n],
    "x[V+10]=7; echo ${x[V+10]}": lambda n: 7,
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("number", [0, 1, 7, -1, -5])
def test_a_whole_number_can_stand_wherever_the_shell_calculates(shell: str, number: int) -> None:
    places = {**NUMBERS, **(BASH_NUMBERS if shell == "bash" else {})}
    for template, expected in places.items():
        assert deliver(template, str(number), shell).decode().strip() == str(expected(number)), template


@pytest.mark.parametrize("shell", SHELLS)
def test_the_largest_whole_numbers_are_exact(shell: str) -> None:
    for number in (2**63 - 1, -(2**63) + 1):
        assert deliver("echo $((V))", str(number), shell).decode().strip() == str(number)


@pytest.mark.scenario("V4")
def test_nul_is_refused_and_comments_get_nothing() -> None:
    with pytest.raises(ValueError, match="NUL"):
        quoting.fill(lexer.slots(["echo ", ""]), ["a\0b"])
    literals = ["# about ", "\ntrue"]
    assert quoting.fill(lexer.slots(literals), ["x\nrm -rf /"]) == ("# about \ntrue", {})


@given(st.text("${}'\"\\ ab\n", max_size=30))
def test_splitting_loses_nothing(text: str) -> None:
    try:
        pieces = placeholders.split(text)
    except placeholders.UnclosedPlaceholder as error:
        assert text[error.offset :].startswith("${{")
        return
    for literal, expression, offset in pieces:
        assert "${{" not in literal
        if expression is not None:
            assert text[offset:].startswith("${{")
