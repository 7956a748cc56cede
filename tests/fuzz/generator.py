"""Random pipelines: a seed gives the same pipeline, written as YAML, and what its steps are to do in the world.

What a step does (cost, fail, leave a daemon, kill rerail) is in control files outside the project, so that repairing the
world is no edit of the pipeline. What a step hands out depends on its definition and on what it saw, so that a stale value
cannot be right by chance.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field
from typing import Any

NEVER = "never"
CARRY = "carry"

# Sourced by every step. The ledger is outside the state directory; a line is one write, so lines are never mixed.
PROBE = r"""
say() { printf '%s\n' "$*" >> "$FZ/ledger"; }
probe() {
  tok=$1 scope=$2; shift 2; seen=$*
  cost=0 first=0 down= slow= daemon= leak= killer= hang=
  unit=${RERAIL_STEP//\//\~}
  [ ! -e "$FZ/ctl/$unit" ] || . "$FZ/ctl/$unit"
  stat=$(cat /proc/$$/stat); set -- ${stat##*) }
  say "S|$RERAIL_RUN_ID|$RERAIL_STEP|$scope|$RERAIL_ATTEMPT|$RERAIL_STEP_KEY|$$|${20}|$tok|$seen"
  if [ -n "$daemon" ]; then
    sleep 300 </dev/null >/dev/null 2>&1 &
    dstat=$(cat /proc/$!/stat); set -- ${dstat##*) }; say "D|$!|${20}"
  fi
  if [ -n "$leak" ]; then
    echo "out $FZ_SECRET"; printf %s "$FZ_SECRET" | base64; echo "err $FZ_SECRET" >&2
    echo "s=$FZ_SECRET" >> "$RERAIL_OUTPUT"
  fi
  if [ "$cost" != 0 ]; then
    say "M|$RERAIL_RUN_ID|$cost"; echo "{\"cost_usd\": $cost}" >> "$RERAIL_METRICS"; say "N|$RERAIL_RUN_ID|$cost"
  fi
  if [ -n "$killer" ] && mkdir "$FZ/killed.$unit" 2>/dev/null; then say "K|$PPID"; kill -"$killer" $PPID; sleep 60; fi
  [ -z "$slow" ] || sleep "$slow"
  [ -z "$hang" ] || sleep 60
  [ -z "$down" ] || case ",$down," in *",$scope,"*|*",*,"*) say "F|$RERAIL_RUN_ID|$RERAIL_STEP|$scope"; echo "down ${FZ_SECRET:0:0}" >&2; exit 3;; esac
  if [ "$first" != 0 ]; then
    file="$FZ/cnt/$unit.$scope"; n=0; [ ! -e "$file" ] || n=$(cat "$file")
    if [ "$n" -lt "$first" ]; then
      echo $((n + 1)) > "$file.new"; mv "$file.new" "$file"; say "F|$RERAIL_RUN_ID|$RERAIL_STEP|$scope"; exit 4
    fi
  fi
  h=$(printf '%s' "$tok|$scope|$seen" | md5sum); v=h${h:0:8}
}
hand() { printf 'v=%s\nn=%s\n' "$v" "$((16#${h:0:2} % 10))" >> "$RERAIL_OUTPUT"; }
leave() { mkdir -p art; printf '%s\n' "$v" > "$1"; }
ends() { say "E|$RERAIL_RUN_ID|$RERAIL_STEP|$scope|$RERAIL_ATTEMPT|$v"; }
"""


@dataclass
class Step:
    """One step of the language, with what can be edited."""

    id: str
    kind: str = "run"  # run write approve map loop pipeline
    needs: list[str] = field(default_factory=list)
    plain_order: bool = False  # `needs` is left out: the step before it
    when: str = ""  # never, or the id of a need whose number must be even
    allow_failure: bool = False
    idempotent: bool = True
    retry: int = 1
    timeout: bool = False
    outputs: bool = True
    artifact: str = ""  # kept, or lost: with no copy
    reads: str = ""  # the need whose artifact it declares as input, or `src`
    secret: bool = False
    checks: bool = False
    on_failure: str = ""  # the id of its clean-up
    token: int = 0
    note: int = 0
    body: list[Step] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    over: str = "list"
    parallel: int = 0
    max_failures: int = 0
    on_item_failure: str = "dlq"
    iterations: int = 2
    until: int = 0
    carries: bool = False

    def definition(self) -> str:
        """What rerail could compare of this step alone."""
        own = dataclasses.asdict(self)
        return repr(sorted(own.items()))


@dataclass
class Behaviour:
    """What a step does in the world, whatever its definition says."""

    cost: int = 0  # cents
    first: int = 0  # attempts of each unit that fail
    down: set[str] = field(default_factory=set)  # scopes, or *
    slow: float = 0
    daemon: bool = False
    leak: bool = False
    killer: str = ""
    hang: bool = False
    unchecked: bool = False  # its check fails

    def text(self) -> str:
        lines = [f"cost={self.cost / 100:.2f}" if self.cost else "", f"first={self.first}" if self.first else ""]
        lines += [f"down='{','.join(sorted(self.down))}'" if self.down else "", f"slow={self.slow}" if self.slow else ""]
        lines += ["daemon=1" if self.daemon else "", "leak=1" if self.leak else "", "hang=1" if self.hang else ""]
        lines += [f"killer={self.killer}" if self.killer else ""]
        return "".join(line + "\n" for line in lines if line)


@dataclass
class Case:
    """A pipeline and its world."""

    seed: int
    steps: list[Step]
    world: dict[str, Behaviour]  # by path
    finals: list[str]
    budget: int = 0  # cents
    history: int = 20
    secret: str = ""
    version: int = 0  # of the labels: edits that concern no step


def paths(steps: list[Step], prefix: str = "") -> dict[str, Step]:
    """Every step by its path. The single plain step of a map is called by the path of the map."""
    found: dict[str, Step] = {}
    for step in steps:
        path = prefix + step.id
        found[path] = step
        if step.body and not is_folded(step):
            found |= paths(step.body, path + "/")
    return found


def is_folded(step: Step) -> bool:
    return step.kind == "map" and len(step.body) == 1 and step.body[0].kind == "run"


class Generator:
    """Draws a case."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"case {seed}")
        self.count = 0

    def case(self) -> Case:
        rng = self.rng
        secret = f"hunter{rng.randrange(10**9)}zebra" if rng.random() < 0.4 else ""
        steps = self.steps(rng.randint(2, 5), 0, bool(secret))
        world: dict[str, Behaviour] = {}
        for path, step in paths(steps).items():
            leaf = step.body[0] if is_folded(step) else step
            if leaf.kind == "run":
                world[path] = self.behaviour(leaf)
        case = Case(self.seed, steps, world, [f"f{n}" for n in range(rng.choice([0, 0, 1, 1, 2]))], secret=secret)
        if rng.random() < 0.15:
            case.budget = rng.randint(5, 60)
        case.history = rng.choice([20, 20, 3, 0])
        return case

    def name(self) -> str:
        self.count += 1
        return "abcdefghijklmnopqrstuvwxyz"[(self.count - 1) % 26] + str(self.count)

    def steps(self, number: int, depth: int, secret: bool, *, in_loop: bool = False) -> list[Step]:
        made: list[Step] = []
        for index in range(number):
            made.append(self.step(made, depth, secret, first=index == 0, in_loop=in_loop))
        return made

    def step(self, before: list[Step], depth: int, secret: bool, *, first: bool, in_loop: bool) -> Step:
        rng = self.rng
        kinds = ["run"] * 10
        if depth < 3 and self.count < 12 and not (first and depth):
            kinds += ["map"] * 3 + ["pipeline"] * 2
            kinds += ["loop"] * 2 if not in_loop else []  # the number of the outer one could not be seen
        if depth == 0 and not first:
            kinds += ["approve", "write"]
        step = Step(self.name(), rng.choice(kinds), token=rng.randrange(100))
        if before:
            if rng.random() < 0.5:
                step.plain_order, step.needs = True, [before[-1].id]
            else:
                step.needs = sorted(rng.sample([one.id for one in before], rng.randint(0, min(2, len(before)))))
        plain = {one.id: one for one in before}
        sound = [
            one for one in step.needs if plain[one].kind == "run" and not (plain[one].when or plain[one].allow_failure)
        ]
        if not first or depth == 0:
            step.allow_failure = rng.random() < 0.12 and step.kind != "write"
            if rng.random() < 0.15 and step.kind not in {"approve", "write"}:
                step.when = rng.choice([NEVER, *[one for one in sound if plain[one].outputs]])
        if step.kind not in {"approve", "write"} and rng.random() < 0.2:
            step.on_failure = f"c{step.id}"
        if step.kind == "run":
            self.plain(step, sound, plain, depth, secret, first=first)
        if step.kind in {"map", "loop", "pipeline"}:
            step.body = self.steps(
                2 if step.kind == "pipeline" else rng.randint(1, 2), depth + 1, secret, in_loop=step.kind == "loop"
            )
        if step.kind == "map":
            if len(step.body) == 1:
                step.body[0].on_failure = ""  # else it is a level of its own
            step.items = [f"{step.id}{letter}" for letter in "xyzw"[: rng.randint(1, 3)]]
            step.over = (
                rng.choice(["list", "list", "command", "lines", "json"])
                if depth == 0
                else rng.choice(["expression", "command"])
            )
            step.parallel = rng.choice([0, 0, 1, 2])
            step.max_failures = rng.choice([0, 0, 1])
            step.on_item_failure = rng.choice(["dlq"] * 5 + ["skip", "stop"])
        if step.kind == "loop":
            step.iterations = rng.randint(1, 3)
            last = step.body[-1]
            if rng.random() < 0.5:
                step.until = rng.randint(1, step.iterations)
            # What is carried over is that of this iteration if it has run already: only where it cannot have, the value is sure.
            after = last is step.body[0] or step.body[0].id in last.needs
            step.carries = after and last.kind == "run" and last.outputs and not last.when and not last.allow_failure
        return step

    def plain(
        self, step: Step, sound: list[str], plain: dict[str, Step], depth: int, secret: bool, *, first: bool
    ) -> None:
        rng = self.rng
        step.retry = rng.choice([1, 1, 1, 2, 3])
        step.idempotent = rng.random() > 0.12
        step.outputs = (first and depth > 0) or rng.random() > 0.12
        if rng.random() < 0.35:
            step.artifact = rng.choice(["kept", "kept", "lost"])
        readable = [one for one in sound if plain[one].artifact]
        if rng.random() < 0.3:
            step.reads = rng.choice([*readable, "src"]) if depth == 0 else rng.choice([*readable, ""])
        step.secret = secret and rng.random() < 0.4 and step.outputs
        step.timeout = rng.random() < 0.05
        step.checks = rng.random() < 0.1

    def behaviour(self, step: Step) -> Behaviour:
        rng = self.rng
        return Behaviour(
            cost=rng.choice([0, 0, 1, 3, 7, 12]),
            first=rng.choice([0] * 6 + [1, 2]),
            down={"*"} if rng.random() < 0.12 else set(),
            slow=rng.choice([0, 0, 0, 0.02, 0.1]),
            daemon=rng.random() < 0.08,
            leak=step.secret,
            killer=rng.choice(["KILL", "KILL", "TERM"]) if rng.random() < 0.06 else "",
            hang=step.timeout,
            unchecked=step.checks and rng.random() < 0.4,
        )


# Writing it as YAML ------------------------------------------------------------------------------------------------------


def seen_of(need: Step) -> str:
    """The expression a step sees a need by: one word, also if the need handed out nothing."""
    if need.kind == "map":
        return f'${{{{ steps.{need.id}.outputs.results | default([]) | map(attribute="outputs.v", default="") | join(",") }}}}'
    if need.kind == "approve":
        return f'${{{{ steps.{need.id}.outputs.approved | default("-") | string | lower }}}}'
    return f'${{{{ steps.{need.id}.outputs.v | default("-") }}}}'


def written_by(step: Step) -> str:
    return f"written/{step.id}.txt"


def artifact_of(path: str, scope: str) -> str:
    return f"art/{path.replace('/', '~')}.{scope}"


class Writer:
    """A case as files: the pipeline, those inside it, the sources of lists."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.files: dict[str, Any] = {}
        self.texts: dict[str, str] = {}

    def write(self) -> dict[str, Any]:
        case = self.case
        top: dict[str, Any] = {"name": "p", "steps": self.steps(case.steps, "", "", [])}
        top["labels"] = {"version": str(case.version)}
        top["max_crashes"] = 1000  # it is killed more often than any step would kill it
        if case.budget:
            top["budget"] = {"cost_usd": case.budget / 100}
        if case.secret:
            top["secrets"] = ["FZ_SECRET"]
        if case.history != 20:
            top["checkpoint"] = {"history": case.history}
        if case.finals:
            top["finally"] = [
                {"id": one, "run": '. "$FZ/probe"; probe 0 "" ${{ run.status }}; ends'} for one in case.finals
            ]
        self.files["p.yaml"] = top
        return self.files

    def steps(self, steps: list[Step], prefix: str, scope: str, outer: list[str]) -> list[dict[str, Any]]:
        return [self.step(step, steps, prefix, scope, outer if index == 0 else []) for index, step in enumerate(steps)]

    def step(self, step: Step, siblings: list[Step], prefix: str, scope: str, outer: list[str]) -> dict[str, Any]:
        path = prefix + step.id
        by_id = {one.id: one for one in siblings}
        spec: dict[str, Any] = {"id": step.id}
        if not step.plain_order and siblings[0] is not step:
            spec["needs"] = list(step.needs)
        if step.when:
            spec["when"] = "false" if step.when == NEVER else f"(steps.{step.when}.outputs.n | default(0)) % 2 == 0"
        if step.allow_failure:
            spec["allow_failure"] = True
        if step.on_failure:
            spec["on_failure"] = [{"id": step.on_failure, "run": f'. "$FZ/probe"; probe 0 "{scope}"; ends'}]
        seen = [*outer, *[seen_of(by_id[one]) for one in step.needs]]
        if step.kind == "run":
            self.plain(spec, step, path, scope, seen)
        elif step.kind == "write":
            spec["write"] = {"path": written_by(step), "content": " ".join([str(step.token), *seen]) + "\n"}
        elif step.kind == "approve":
            spec["approve"] = f"Is {step.id} all right?"
        else:
            self.controller(spec, step, path, scope, seen)
        return spec

    def plain(self, spec: dict[str, Any], step: Step, path: str, scope: str, seen: list[str]) -> None:
        if step.retry > 1:
            spec["retry"] = {"attempts": step.retry, "delay": 0.02, "jitter": False}
        if not step.idempotent:
            spec["idempotent"] = False
        if step.timeout:
            spec["timeout"] = 0.5
        if step.checks:
            spec["checks"] = [f'test ! -e "$FZ/ctl/unchecked.{path.replace("/", "~")}"']
        words = " ".join(f'"{one}"' for one in seen)
        if step.reads:
            source = f"src/{step.id}.txt" if step.reads == "src" else artifact_of(sibling(path, step.reads), scope)
            spec["inputs"] = [source]
            words = f'"$(cat "{source}")"'
        lines = ['. "$FZ/probe"', f'probe {step.token} "{scope}" {words}']
        lines += ["hand"] if step.outputs else []
        if step.artifact:
            name = artifact_of(path, scope)
            lines += [f'leave "{name}"']
            spec["artifacts"] = [name] if step.artifact == "kept" else [{"path": name, "keep": False}]
        lines += ["ends", f": note {step.note}"]
        spec["run"] = "\n".join(lines) + "\n"

    def controller(self, spec: dict[str, Any], step: Step, path: str, scope: str, seen: list[str]) -> None:
        inner = path + "/"
        if step.kind == "map":
            spec["map"] = self.over(step, scope)
            spec["steps"] = self.steps(step.body, inner, "${{ item }}", seen) if not is_folded(step) else []
            if is_folded(step):  # the step inside is called by the path of the map
                only = renamed(step.body[0], step.id)
                spec["steps"] = [
                    {**self.step(only, [only], path_before(path), "${{ item }}", seen), "id": step.body[0].id}
                ]
        elif step.kind == "loop":
            spec["loop"] = {"max_iterations": step.iterations}
            if step.until:
                spec["loop"]["until"] = f"loop.iteration >= {step.until}"
            carried = [f'${{{{ steps.{step.body[-1].id}.outputs.v | default("-") }}}}'] if step.carries else []
            spec["steps"] = self.steps(step.body, inner, f"{scope}#${{{{ loop.iteration }}}}", [*seen, *carried])
        else:
            name = f"{step.id}.yaml"
            spec["pipeline"] = name
            spec["with"] = {"i": scope, "o": " ".join(seen)}
            last = step.body[-1]
            self.files[name] = {
                "params": {"i": {"type": "string", "default": ""}, "o": {"type": "string", "default": ""}},
                "outputs": {"v": seen_of(last)},
                "steps": self.steps(step.body, inner, "${{ params.i }}", ["${{ params.o }}"]),
            }

    def over(self, step: Step, scope: str) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        if step.over == "list":
            spec["over"] = list(step.items)
        elif step.over == "lines":
            self.texts[f"{step.id}.txt"] = "".join(one + "\n" for one in step.items)
            spec["over"] = {"lines": f"{step.id}.txt"}
        elif step.over == "json":
            self.files[f"{step.id}.json"] = {"all": list(step.items)}
            spec["over"] = {"json": f"{step.id}.json", "path": "$.all[*]"}
        else:
            spec["over"] = {"command": f'for one in {" ".join(step.items)}; do echo "{scope}.$one"; done'}
            if not scope:
                spec["over"] = {"command": f"printf '%s\\n' {' '.join(step.items)}"}
        if step.parallel:
            spec["parallel"] = step.parallel
        if step.max_failures:
            spec["max_failures"] = step.max_failures
        if step.on_item_failure != "dlq":
            spec["on_item_failure"] = step.on_item_failure
        return spec


def path_before(path: str) -> str:
    return path[: path.rfind("/") + 1]


def sibling(path: str, name: str) -> str:
    return path_before(path) + name


def renamed(step: Step, name: str) -> Step:
    return dataclasses.replace(step, id=name)
