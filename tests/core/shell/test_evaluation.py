"""Values against scripts that evaluate: generated pairs, run by every shell there is. The oracle is a file that the
command in the value would make.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest

from rerail.core.expressions import placeholders
from rerail.core.shell import lexer, quoting
from tests.sweeps import SEED, part

EACH = part(1, 31)  # values for each script; all of them with all of them take half an hour
SHELLS = {"bash": ("bash", "-eo", "pipefail"), "dash": ("dash", "-e"), "busybox": ("busybox", "sh", "-e")}

# Every construct of bash, dash and busybox that evaluates what a variable holds, or that looks as if it might. `v` is
# the variable; each stands in a script that goes on to the next line.
ARITHMETIC = [
    "(( v > 3 )) || true", "(( $v > 3 )) || true", "echo $(( v + 1 ))", "echo $(( $v + 1 ))", "echo $((v))",
    "echo $[ v + 1 ]", "let x=v || true", 'let "x = $v" || true', "let v++ || true", "for ((i=v; i<1; i++)); do :; done",
    "for ((i=0; i<v; i++)); do break; done", "while (( v )); do break; done", "until (( v )); do break; done",
    "[[ $v -eq 3 ]] || true", "[[ v -gt 3 ]] || true", '[[ 3 -le "$v" ]] || true', "[[ ! $v -ne 1 && 1 -lt 2 ]] || true",
    "echo ${HOME:v}", 'echo "${HOME:$v}"', 'echo "${HOME:0:v}"', 'set -- a b; echo "${@:v}"', 'x=(1 2); echo "${x[@]:v:1}"',
    "x=(1 2); echo ${x[v]}", "x=(1 2); echo ${x[$v]}", "x[v]=1", 'x[$v]=1', "x=([v]=1)", 'x=([$v]=1)', "x+=([v]=2)",
    'declare -A m=([$v]=1)', 'declare -A m; m=(["$v"]=1)', "x=(\n  [0]=1\n  [$v]=2\n)",
    "declare -i n; n=$v", 'declare -i n=$v', "typeset -i n=$v", 'f2() { local -i n=$1; }; f2 "$v"', "readonly -i n9=$v",
    "RANDOM=$v", "SRANDOM=$v", "SECONDS=$v", "OPTIND=$v", "LINENO=$v", "HISTCMD=$v", "for RANDOM in \"$v\"; do :; done",
    "read -r SECONDS <<< \"$v\"", "x=(1); (( x[$v]++ )) || true", "declare -A m; (( m[$v]++ )) || true",
    'declare -A m; echo $(( m[$v] ))', "x=(1); echo ${x[x[$v]]}", "l''et \"x=$v\" || true", "\\let x=v || true",
    "(\\\n( v )) || true", "echo $(( 1 ? v : 0 ))", "select i in 1; do (( REPLY )) || true; break; done <<< \"$v\"",
    "(( x = v, 1 ))", "exec {fd[v]}</dev/null", "mapfile -t x <<< \"$v\"; (( x[0] )) || true", "n=$v; n=$(( n )) ; echo $n",
    "read -r n _ <<< \"$v\"; echo $(( n ))", "printf -v n %s \"$v\"; (( n )) || true", "echo \"${x[$(( v ))]}\"",
    "echo $(( ${v} )) $(( \"$v\" ))", "n=${v:-0}; test $(( n )) = 1 || true", "coproc (( v )); wait", "time (( v )) || true",
]  # fmt: skip
NAMES = [
    'unset "$v" || true', "unset $v || true", 'x=(1); unset "x[$v]" || true', 'read -r "$v" <<< x || true',
    'read -ra "$v" <<< x || true', 'mapfile -t "$v" <<< x || true', 'readarray "$v" <<< x || true',
    'printf -v "$v" x || true', 'printf -v"$v" x || true', 'printf "$v" x || true', "printf $v x || true",
    'test -v "$v" || true', '[ -v "$v" ] || true', '[[ -v $v ]] || true', '[[ -R $v ]] || true', "[ $v ] || true",
    "[ $v -gt 3 ] || true", "[ -n $v ] || true", "[ $v = x ] || true", "test $v || true", "if test $v; then :; fi",
    'wait -p "$v" || true', 'sleep 0 & wait -np "$v" || true', 'sleep 0 & wait -n "$v" || true', 'wait "$v" || true',
    'declare "$v" || true', "declare $v || true", 'declare "x$v=1" || true', 'export "$v" || true', "export $v || true",
    'readonly "$v" || true', 'typeset "$v" || true', 'f3() { local "$1"; }; f3 "$v" || true', 'declare -n r=$v; echo $r',
    'f4() { local -n r=$1; echo $r; r=1; }; f4 "$v" || true', "declare -n r; for r in $v; do echo $r; done", "echo ${!v}",
    'echo "${!v:-x}"', ': "${!v:=1}"', 'set -- "$v"; echo ${!1}', "declare -a x=$v", "declare -A m=$v", 'x=(1); declare x=$v',
    'f5() { local -a x=$1; }; f5 "$v"', "export x=$v", "readonly -a x8=$v", 'declare -a "x=($v)"', 'declare -a "x=$v"',
    "getopts ab \"$v\" || true", 'exec {fd}<"$v" || true', "command export y=$v || true", "builtin declare y=$v || true",
    'declare -p "$v" || true', 'coproc "$v" { :; } || true', 'a=(1); unset "$v" || true', "A=1 export y=$v || true",
    'c=unset; a=(1); $c "$v" || true', 'for c in unset; do a=(1); $c "$v" || true; done', 'a=(1); unset y 2>/dev/null "$v" || true',
    'run() { "$@"; }; run printf "$v" x || true', 'g() { $1 "$2"; }; a=(1); g unset "$v" || true', 'read -r y </dev/null "$v" || true',
    'c=(printf); "${c[@]}" "$v" x || true', 'a=(1); unset } "$v" || true',
    'declare -gx "$v" || true', "name=x$v; declare $name=1 || true", 'x=arr; printf -v "${x}[$v]" y || true',
]  # fmt: skip
EXPANDING = [
    "echo ${v@P}", 'set -- "$v"; echo "${@@P}"', "PS4=$v; set -x; :", 'compgen -W "$v" || true', "export PS4=$v; set -x; :",
    'BASH_ENV="$v" bash -c :', 'set -x; export "$v" || true; :', "set -x; export $v || true; :", 'ENV="$v" sh -c :',
]  # fmt: skip
# These only look so; values are delivered in them.
INNOCENT = [
    'echo "$v"', 'test "$v" -eq 1 || true', '[ "$v" = x ] || true', 'printf "%s" "$v"', 'printf %d "$v" || true',
    'case $v in a*) echo y;; esac', '[[ $v == a* ]] || true', "[[ $v =~ ^a ]] || true", "x=${v#a} y=${v%a} z=${v/a/b}",
    'export LANG=C; echo "$v"', 'export V2="$v"; echo "$V2"', "while read -r line; do echo \"$line\"; done <<EOF\n$v\nEOF",
    'IFS=, ; for w in $v; do echo "$w"; done', 'x=("$v" "b"); echo "${x[@]}" ${#x[@]}', "shift $v || true", "cd \"$v\" || true",
    'trap "rm -f x" EXIT; echo "$v"', 'echo "${v@Q}" "${v^^}" "${v:-x}"', "x=$(printf %s \"$v\" | cat); echo \"$x\"",
    'kill -0 "$v" || true', 'ulimit -n "$v" || true', 'set -- $v; echo $#', "cat <<'EOF'\n$v\nEOF", 'read -r x <<< "$v"; echo "$x"',
    "read -t \"$v\" x <<< y || true", 'type "$v" || true', 'hash "$v" || true', "echo {1..$v}", "umask \"$v\" || true",
    'exec 9>"x$$"; echo "$v" >&9; exec 9>&-; rm -f "x$$"', "unset x y; echo \"$v\"", 'printf "%*d" "$v" 1 || true',
    'TMOUT=$v; COLUMNS=$v; HISTSIZE=$v; BASH_XTRACEFD=$v; FUNCNEST=$v; TZ=$v; IFS=$v; true', "echo \"$v\" | sed 's/a[b-c]/x/'",
    "local_=1; : \"$v\"; echo ~$v", 'awk -v x="$v" "BEGIN { exit }" || true', "x=$v; echo \"${x:0:3}\"", "alias q=$v || true",
    'x=($v); echo "${x[0]}"', 'x=("$v"); y=("${x[@]}"); echo "${y[@]}"', "declare -r k9=\"$v\"; echo \"$k9\"",
]  # fmt: skip
CONSTRUCTS = [*ARITHMETIC, *NAMES, *EXPANDING, *INNOCENT]

# How a value gets into `v`, and the construct into a script.
WAYS = {
    "assigned": "v={{V}}\n%s\n",
    "in quotes": 'v="{{V}}"\n%s\n',
    "given to a function": "f() {\n v=$1\n %s\n}\nf {{V}}\n",
    "split": "x={{V}}\nfor v in $x; do\n %s\ndone\n",
    "substituted": "v=$(printf '%%s' '{{V}}')\n( %s\n)\n",
}
DIRECT = {
    "direct": lambda construct: construct.replace('"$v"', "{{V}}").replace("$v", "{{V}}").replace("${v}", "{{V}}"),
    "direct, single": lambda construct: construct.replace('"$v"', "'{{V}}'").replace("$v", "'{{V}}'"),
}


def scripts(way: str) -> list[str]:
    """Every construct, reached by a value in this way."""
    if way in WAYS:
        found = [WAYS[way] % construct for construct in CONSTRUCTS]
    else:
        found = [DIRECT[way](construct) for construct in CONSTRUCTS]
    return [script.replace("{{V}}", "${{ v }}") for script in dict.fromkeys(found) if "{{V}}" in script]


NAMES_BEFORE = ["a", "PATH", "DIRSTACK", "1+a", "b[0]+a", "-a", "(a", "v=a", "-v a", "-va", "-pa", "1 -o -v a", "x a",
                "a=1,b", "é", "", "x", "1?a", "!a", "RERAIL_VALUE_0"]  # fmt: skip
BRACKETS = ["[P]", '["P"]', "['P']", "[.P]", "[;P]", "[{P]", "[[P]", "[b[P]]", "[P", "[\nP]", '["]"P]', "[#P]", "[1+P]",
            "[\\]P]", "[x]P", "[ P ]", "[@P]", "['\"'P]", "[$x P]", '[b["P"]]']  # fmt: skip
COMMANDS = ["$(>pwned)", "`>pwned`", "${x:-$(>pwned)}", "${x-`>pwned`}", "$(touch${IFS}pwned)", "$(touch pwned)", "<(>pwned)",
            ">(>pwned)", "$((b[$(>pwned)]))", "$[b[$(>pwned)]]", "${x[$(>pwned)]}", "${HOME:b[$(>pwned)]}", "${ >pwned; }",
            '"$(>pwned)"']  # fmt: skip
ENDS = ["", "=1", "+1", " x", ")", " -o 1", "=($(>pwned))", "\n"]
WITHOUT_SUBSCRIPT = [
    "$(>pwned)", "`>pwned`", "($(>pwned))", "(<(>pwned))", "([0]=$(>pwned))", "([$(>pwned)]=1)", "x=$(>pwned)", "x=($(>pwned))",
    "PS4=$(>pwned)", "PS4=`>pwned`", "1 PS4=$(>pwned)", "';>pwned;'", '";>pwned;"', "\n>pwned\n", "; >pwned", "| touch pwned",
    "&& touch pwned", ">pwned", "$(", "`", ")); >pwned; ((", "]; >pwned; [", "}; >pwned; {", "x) >pwned;; esac; case x in x",
    "\\044(>pwned)", "\\140>pwned\\140", "EOF\n>pwned\nEOF", "]]; >pwned; [[ x", "BASH_ENV=pwned", "-c >pwned", "a b c",
    "*", "~", "-n", "--", "",
]  # fmt: skip


def values(seed: int = 20261117, more: int = 40) -> list[str]:
    """One thing varied at a time, and a sample of everything with everything."""
    base = ("a", "[P]", "$(>pwned)", "")
    lists = (NAMES_BEFORE, BRACKETS, COMMANDS, ENDS)
    parts = [(*base[:place], part, *base[place + 1 :]) for place, given in enumerate(lists) for part in given]
    every = list(product(*lists))
    parts += random.Random(seed).sample(every, more)
    found = [name + bracket.replace("P", command) + end for name, bracket, command, end in parts]
    return list(dict.fromkeys([*found, *WITHOUT_SUBSCRIPT]))


def filled(script: str, given: Sequence[str]) -> tuple[str, dict[str, str]] | None:
    """What would be run; None if it is refused."""
    pieces = placeholders.split(script)
    try:
        places = lexer.slots([literal for literal, _, _ in pieces])
        return quoting.fill(places, [given[index % len(given)] for index in range(len(places.slots))])
    except (lexer.NotAllowedHere, quoting.ValueRefused):
        return None


class Trial:
    """A directory in which scripts run, and in which nothing must appear."""

    def __init__(self, shell: str, directory: Path) -> None:
        self._argv = SHELLS[shell]
        self._directory = directory
        self._env = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "LC_ALL": "C.UTF-8"}

    def runs(self, script: str, variables: dict[str, str]) -> bool:
        """Whether something in the values was executed."""
        subprocess.run(
            [*self._argv, "-c", script],
            env={**self._env, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._directory,
            check=False,
            timeout=300,
        )
        found = self._directory / "pwned"
        if not found.exists():
            return False
        found.unlink()
        return True


@pytest.fixture(params=SHELLS)
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Trial:
    if not shutil.which(SHELLS[request.param][0]):
        pytest.skip(f"there is no {SHELLS[request.param][0]} here")
    return Trial(request.param, tmp_path)


def pairs(way: str, each: int | None = None) -> Iterator[tuple[str, str]]:
    """Scripts and values: all of them, or a sample of the values for every script."""
    everything, chance = values(), random.Random(part(SEED, 20261117))
    for script in scripts(way):
        for value in everything if each is None else chance.sample(everything, each):
            yield script, value


@pytest.mark.scenario("J7")
@pytest.mark.timeout(2400)
def test_no_value_runs_in_any_script_that_evaluates(trial: Trial) -> None:
    assert len(scripts("assigned")) >= 150
    assert len(values()) >= 120
    tried = [*pairs("assigned", EACH), *(pair for way in (*WAYS, *DIRECT) for pair in pairs(way, part(1, 3)))]
    executed = [
        (script, value) for script, value in tried if (run := filled(script, [value])) is not None and trial.runs(*run)
    ]
    assert executed == []


# Two values of which neither is dangerous, and a script that puts them together.
TOGETHER = [
    ("x=A; y=B; (( $x$y )) || true", ["a[", "$(>pwned)]"]),
    ("x=AB; (( x )) || true", ["a[", "$(>pwned)]"]),
    ("x=AB; (( x )) || true", ["a[$", "(>pwned)]"]),
    ("x=AB; (( x )) || true", ["a", "[$(>pwned)]"]),
    ("x=ABC; (( x )) || true", ["a[", "$(>pwned)", "]"]),
    ("x=A; y=B; (( x )) || true", ["a[b[$y]]", "$(>pwned)"]),
    ("x=A; y=B; (( x )) || true", ["a[b[$RERAIL_VALUE_1]]", "`>pwned`"]),
    ("x=A; for w in $x; do (( w )) || true; done", ["$(>pwned) a[b[$x]]"]),
    ("x=A; y=B; declare -a m; (( m[$x$y] )) || true", ["$", "(>pwned)"]),
    ('x=A; printf -v "foo$x" y || true', ["[$(>pwned)]"]),
    ('x=fooA; unset "$x" || true', ["[$(>pwned)]"]),
    ('x=A; y=B; test "$x" "$y" || true', ["-v", "a[$(>pwned)]"]),
    ("set -x; export A=1; read -r A <<< B", ["PS4", "$(>pwned)"]),
]


@pytest.mark.parametrize(("script", "given"), TOGETHER)
def test_values_do_not_run_together_either(trial: Trial, script: str, given: list[str]) -> None:
    marked = script
    for letter in "ABC"[: len(given)]:
        marked = marked.replace(f"{letter}=1", "").replace(letter, "${{ v }}")
    run = filled(marked, given)
    assert run is None or not trial.runs(*run)


EVALUATED = [
    "trap 'rm -f ${{ v }}' EXIT", 'trap "echo ${{ v }}" EXIT', "trap -- 'echo '${{ v }} EXIT", "eval echo ${{ v }}",
    'eval "x=${{ v }}"', "bash -c 'echo ${{ v }}'", 'sh -c "echo ${{ v }}; true"', "/bin/sh -ec 'echo ${{ v }}'",
    "bash <<EOF\necho ${{ v }}\nEOF", "sh -e <<'EOF'\necho ${{ v }}\nEOF", "cat <<EOF | cat\nx\nEOF\nbash -s <<EOF\n: ${{ v }}\nEOF",
]  # fmt: skip


def test_variables_that_bash_expands_by_itself_hold_no_commands(trial: Trial) -> None:
    places = lexer.slots(["set -x; true"])
    for name, value in product(("BASH_ENV", "PS4"), ("$(>pwned)", "`>pwned`", "\\044(>pwned)", "x$(>pwned)")):
        with pytest.raises(quoting.ValueRefused):
            quoting.fill(places, [], {name: value})
        assert not trial.runs("true", {name: "plain"})


@pytest.mark.parametrize("script", EVALUATED)
def test_a_value_in_a_text_that_is_evaluated_does_not_run(trial: Trial, script: str) -> None:
    for value in ["$(>pwned)", "`>pwned`", "; >pwned", "x\n>pwned", "a touch pwned", "'>pwned'", "&& touch pwned"]:
        run = filled(script, [value])
        assert run is None or not trial.runs(*run)
    assert filled(script, ["build/out-1.txt"]) is not None


def test_a_value_that_is_the_whole_text_is_meant_to_run(trial: Trial) -> None:
    for script in ("bash -c ${{ v }}", 'eval "${{ v }}"', "trap '${{ v }}' EXIT", 'sh -c \'echo "$1"\' _ "x${{ v }}"'):
        assert filled(script, ["touch a b; rm a b"]) is not None


HARMLESS = [
    "plain", "two words", "it's", 'say "hi"', "42", "-3", "3.14", "1e5", "", " ", "a=b", "PATH=/x", "-n", "--help", "*.py", "~",
    "[text](url)", "see [the docs](https://example.org/a?b=c&d=e#f)", "- [ ] todo\n- [x] done", "[`code`](url)",
    "a[0]", "items[0] crashes", "x[i] = y[j]", "dict[str, int]", "list[int] | None", "`ls`", "run `make test`", "price is $(5)",
    "$5 or $10", "$HOME", "${HOME}", "$(date)", "[a-z]$", "^[A-Z][a-z]+$", "s/[^$]//", '{"a": [1, 2]}', '["x", "y"]',
    '{"a": ["$(x)", "`y`"]}', "# Title\n\nText with `code` and [a link](x).", "if [ -f x ]; then echo $(cat x); fi", "a && b || c",
    "for i in $(seq 3); do echo $i; done", "x=(1 2 3); echo ${x[@]}", "SELECT a[1] FROM t", "<b>bold</b>", "a < b > c", "(see `this`)",
    "echo ${#array[@]}", "C:\\dir\\file", "50% off!", "\N{GREEK SMALL LETTER ALPHA}[1]", "a[$i]", "items[0] crashes in `parse()`",
]  # fmt: skip
EVERYDAY = [
    'echo "${{ v }}"', "printf '%s\\n' ${{ v }}", "claude -p ${{ v }}", 'claude -p "Please read this and test it: ${{ v }}"',
    "cat > f <<'EOF'\n${{ v }}\nEOF", "git commit -m '${{ v }}'", 'x="${{ v }}"\n[ -n "$x" ] && echo "$x"',
    "export TASK=${{ v }}\nmake test", 'export A="${{ v }}" B=1; npm test', "set -- a b; echo ${{ v }} $# $?",
    "while read -r line; do echo \"$line\"; done < f; echo ${{ v }}", "if [[ -n ${{ v }} ]]; then echo yes; fi",
    "case ${{ v }} in a) echo a;; esac", "trap 'rm -f \"$tmp\"' EXIT\ntmp=$(mktemp); echo ${{ v }} > $tmp",
    "f() { local x=\"$1\"; echo \"$x\"; }; f ${{ v }}", "unset FOO BAR; echo ${{ v }}", "mkdir -p out && echo ${{ v }} > out/x",
    "for f in a b; do printf '%s' ${{ v }}; done", "files=(a b c); echo ${#files[@]} ${files[0]} ${{ v }}", "jq '.items[0].name' f; echo ${{ v }}",
    "sha=$(git rev-parse HEAD); echo ${sha:0:7} ${{ v }}", "echo $(( 3 + 4 )); echo ${{ v }}", "python3 - ${{ v }} <<'EOF'\nimport sys\nEOF",
    "curl -d ${{ v }} localhost", "[ $# -gt 0 ] || echo ${{ v }}", "if [ \"${{ v }}\" = fast ]; then echo x; fi", "declare -r k=\"${{ v }}\"",
    "mapfile -t lines < f; echo ${{ v }}", "sleep 1 & wait $!; echo ${{ v }}", "test -f \"$f\" && echo ${{ v }}", "grep -c '[0-9]x' f; echo ${{ v }}",
    "sh -c 'echo \"$1\"' _ ${{ v }}", "echo ${{ v }} | sed 's/a/b/'", "VERBOSE=1 ./build.sh ${{ v }}",
    'test "$(wc -l < "$f")" = 1 && echo ${{ v }}', "python3 -c 'import os; print(os.environ[\"HOME\"])' ${{ v }}",
]  # fmt: skip
COUNTING = [
    "n=${{ v }}; (( n > 3 )) || true", "i=0; i=$((i+1)); echo ${{ v }}", "for ((i=0;i<3;i++)); do echo ${{ v }}; done",
    "[[ $n -gt 3 ]]; echo ${{ v }}", "let n++; echo ${{ v }}", "[ $n -gt 3 ]; echo ${{ v }}", "a[$i]=1; echo ${{ v }}",
    "source venv/bin/activate; echo ${{ v }}", 'eval "$(ssh-agent)"; echo ${{ v }}', 'read -r "$name" < f; echo ${{ v }}',
]  # fmt: skip


def test_harmless_values_are_delivered() -> None:
    refused = {(script, value) for script, value in product(EVERYDAY, HARMLESS) if filled(script, [value]) is None}
    counting = {(script, value) for script, value in product(COUNTING, HARMLESS) if filled(script, [value]) is None}

    assert refused == set()
    # A script that counts gets none of what has the shape of a subscript with a command, prose or not.
    assert {value for _, value in counting} == {"items[0] crashes in `parse()`"}
