"""Values into shell text, judged by real shells: any text, in any place, arrives byte for byte, and nothing runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rerail.core import holes, shelltext, shellvalues

SHELLS = [shell for shell in ("bash", "dash") if shutil.which(shell)]
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
    pieces = holes.split(template.replace("V", "${{ v }}"))
    literals = [literal for literal, _, _ in pieces]
    places = shelltext.slots(literals)
    script, variables = shellvalues.fill(literals, places, [value] * len(places))
    done = subprocess.run(
        [shell, "-e", "-c", script],
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere", "LC_ALL": "C.UTF-8", **variables},
        capture_output=True,
        cwd=cwd,
        check=False,
    )
    assert done.returncode == 0, (script, done.stderr)
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=12, deadline=None)
@given(value=TEXTS)
@example(value="$(touch pwned)`touch pwned`;touch pwned\n'\"\\")
@example(value="")
@example(value="-n")
@example(value="a[$(touch pwned)]")
@example(value="EOF\nA\nB\n")
def test_any_value_in_any_place_arrives_unharmed(shell: str, value: str) -> None:
    for name, template in {**PLACES, **(BASH_PLACES if shell == "bash" else {})}.items():
        out = deliver(template, value, shell).decode()
        assert (out.removesuffix("\n") if "document" in name else out) == f"[{value}]", name


@pytest.mark.parametrize("shell", SHELLS)
def test_nothing_in_a_value_is_executed(shell: str, tmp_path: Path) -> None:
    for payload in ("$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"; touch pwned; "', "a[$(touch pwned)]",
                    "\ntouch pwned\n", "${x:-$(touch pwned)}", "x); touch pwned; (", "}; touch pwned; {"):  # fmt: skip
        for template in PLACES.values():
            deliver(template, payload, shell, tmp_path)
    assert list(tmp_path.iterdir()) == []


@given(TEXTS)
def test_a_quoted_here_document_holds_the_value_or_refuses_it(value: str) -> None:
    template = "cat <<'EOF'\n[V]\nEOF\n"
    try:
        out = deliver(template, value, SHELLS[0])
    except ValueError:
        assert "EOF" in value
    else:
        assert out.decode() == f"[{value}]\n"


def test_a_value_cannot_end_its_here_document_together_with_the_text_around_it() -> None:
    literals = ["cat <<'EOF'\nE", "F\nEOF\n"]

    with pytest.raises(ValueError, match="would end its here-document"):
        shellvalues.fill(literals, shelltext.slots(literals), ["O"])
    nested = ["x=$(cat <<'EOF'\n", "\nEOF\n)"]
    with pytest.raises(ValueError, match="would end its here-document"):
        shellvalues.fill(nested, shelltext.slots(nested), ["EOF)\nid; x=$(cat <<'EOF'"])
    tabbed = ["cat <<-'EOF'\n", "\nEOF\n"]
    with pytest.raises(ValueError, match="tab"):
        shellvalues.fill(tabbed, shelltext.slots(tabbed), ["\tx"])


@pytest.mark.parametrize(
    "template",
    ["echo $((V + 1))", "echo $(( (V) ))", "((x = V))", "if (( V > 1 )); then :; fi", "echo ${a[V]}", "echo ${x:V:2}",
     "[[ V -gt 3 ]]", "[[ 3 -le V ]]", '[[ "V" -gt 3 ]]', "[[ a == a &&\n'V' -gt 1 ]]", "a[V]=1", "echo $[V+1]",
     "echo $(( ${x:-V} ))", 'echo $(( $(printf %s "V") ))', "echo ${x:${y:-V}}", "let x=V", "declare -i x=V", "echo ${!y:V}"],
)  # fmt: skip
def test_only_numbers_stand_where_the_shell_calculates(template: str) -> None:
    literals = [literal for literal, _, _ in holes.split(template.replace("V", "${{ v }}"))]
    places = shelltext.slots(literals)

    assert [slot.place for slot in places] == ["arithmetic"]
    assert shellvalues.fill(literals, places, ["-12"])[0] == template.replace("V", "-12")
    for bad in ("a[$(id)]", "1; id", "x", "", "1.5", "9" * 30):
        with pytest.raises(ValueError, match="whole number"):
            shellvalues.fill(literals, places, [bad])


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
    literals = [literal for literal, _, _ in holes.split(template.replace("V", "${{ v }}"))]

    with pytest.raises(shelltext.Misplaced):
        shelltext.slots(literals)


@pytest.mark.parametrize("shell", SHELLS)
def test_numbers_in_arithmetic_are_decimal(shell: str) -> None:
    assert deliver("printf %s $((V + 1))", "010", shell) == b"11"
    assert deliver("printf %s $((V + 1))", "08", shell) == b"9"
    assert deliver("printf %s $((0 - V))", "-0", shell) == b"0"


def test_nul_is_refused_and_comments_get_nothing() -> None:
    with pytest.raises(ValueError, match="NUL"):
        shellvalues.fill(["echo ", ""], [shelltext.Slot("bare")], ["a\0b"])
    literals = ["# about ", "\ntrue"]
    assert shellvalues.fill(literals, shelltext.slots(literals), ["x\nrm -rf /"]) == ("# about \ntrue", {})


@given(st.text("${}'\"\\ ab\n", max_size=30))
def test_splitting_loses_nothing(text: str) -> None:
    try:
        pieces = holes.split(text)
    except holes.Unclosed as error:
        assert text[error.offset :].startswith("${{")
        return
    for literal, expression, offset in pieces:
        assert "${{" not in literal
        if expression is not None:
            assert text[offset:].startswith("${{")
