"""Measure how readable a checkout is: `scripts/readability.py [CHECKOUT] [--list]`.

Sizes, names, imports and docstrings come from the syntax trees of src/rerail. The cost of one more step is counted with a
profiler: the calls between modules in a run of six `true` steps, minus those in a run of five.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

ROUNDS = 30  # runs of each length, of which the fewest calls count: how often a wait wakes up for nothing is chance

# Names that neither a workflow engine, a database nor a build tool uses for the thing; only whole module names count.
BANNED = """
    allowances around asking board bodies calls change changes child circumstances clean closing conclude content cutoff
    desk disguises drive ending ends fanout finding forking gates glance glimpses hanging heredocs holds holes inner
    inside known launching leftovers letters life listing lives looked making means mend mending objects output
    past patience patterns people places pool portrait prepare purse records remains runlog sentences shared shellplaces
    shelltext shellvalues show_items show_run slots stopping story surroundings symptoms teller template told turns
    wishes within words workshop
""".split()
VAGUE = re.compile(r"\b(what|who|whatever|whoever|nobody|somebody)\b", re.IGNORECASE)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Row = tuple[str, str, list[str]]  # the question, the answer, the names behind it


class Module(NamedTuple):
    """One source file; `name` is dotted, `package` is the name's parent, `nodes` are all nodes of its syntax tree."""

    name: str
    package: str
    is_init: bool
    lines: int
    nodes: list[ast.AST]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parent.parent
    parser.add_argument("checkout", nargs="?", type=Path, default=default, help="default: the one this script is in")
    parser.add_argument("--list", action="store_true", help="list the names behind each number")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)  # in the subprocess: print calls as JSON
    arguments = parser.parse_args()
    source = arguments.checkout.resolve() / "src"
    if arguments.trace:
        sys.stdout.write(json.dumps(trace_extra_step(source)))
        return 0
    modules = [parse(path, source) for path in sorted((source / "rerail").rglob("*.py"))]
    if not modules:
        parser.error(f"no modules in {source / 'rerail'}")
    for question, answer, names in [*measure_code(modules), *measure_imports(modules), measure_extra_step(source)]:
        sys.stdout.write(f"{question:<52} {answer}\n")
        sys.stdout.writelines(f"    {name}\n" for name in names if arguments.list)
    return 0


def parse(path: Path, source: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    is_init = path.stem == "__init__"
    name = ".".join((path.parent if is_init else path.with_suffix("")).relative_to(source).parts)
    return Module(name, name.rpartition(".")[0], is_init, text.count("\n"), list(ast.walk(ast.parse(text))))


def measure_code(modules: list[Module]) -> Iterator[Row]:
    """Measure sizes, module and class names, docstrings, and where commands are."""
    files = [module for module in modules if not module.is_init]
    lines = sum(module.lines for module in modules)
    yield "modules (without __init__) / lines", f"{len(modules)} ({len(files)}) / {lines}", []

    lengths, classes, docstrings, vague = [], defaultdict(list), 0, []
    for module in modules:
        for node in module.nodes:
            if isinstance(node, Function):
                lengths.append(((node.end_lineno or 0) - node.lineno + 1, f"{module.name}.{node.name}"))
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(module.name)
            if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node)):
                docstrings += 1
                if VAGUE.search(first := text.partition("\n")[0]):
                    vague.append(f"{module.name}:{getattr(node, 'lineno', 1)} {first}")
    lengths.sort(reverse=True)
    median, p99 = lengths[len(lengths) // 2][0], lengths[len(lengths) // 100][0]
    longest = [f"{length} {name}" for length, name in lengths[:10]]
    yield "function median / p99 / longest", f"{median} / {p99} / {lengths[0][0]}", longest
    largest = [f"{size} {name}" for size, name in sorted(((m.lines, m.name) for m in modules), reverse=True)[:10]]
    yield "largest module", largest[0], largest
    private = [module.name for module in files if module.name.rpartition(".")[2] in BANNED]
    yield "private or poetic module names", f"{len(private)} of {len(files)}", private
    twice = [f"{name}: {', '.join(homes)}" for name, homes in sorted(classes.items()) if len(homes) > 1]
    yield "class names defined twice or more", f"{len(twice)} of {len(classes)}", twice
    share = f"{len(vague)} of {docstrings} ({len(vague) / docstrings:.0%})"
    yield "docstrings with what/who/nobody/… in the first line", share, vague

    commands = command_modules(next(module for module in modules if module.name == "rerail.cli.main"))
    elsewhere = [f"{command}: {home}" for command, home in commands.items() if home.rpartition(".")[2] != command]
    yield "commands in a module of that name", f"{len(commands) - len(elsewhere)} of {len(commands)}", elsewhere


def command_modules(module: Module) -> dict[str, str]:
    """Read the modules of the commands out of the COMMANDS table, without importing it."""
    for node in module.nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if [ast.unparse(target) for target in targets] == ["COMMANDS"]:
                return {name: entry[0].partition(":")[0] for name, entry in ast.literal_eval(node.value).items()}
    raise SystemExit(f"{module.name} has no table COMMANDS")


def measure_imports(modules: list[Module]) -> Iterator[Row]:
    """Count modules with a single importer, in their own package (re-exports aside), and imports inside functions."""
    known = {module.name for module in modules}
    importers: dict[str, set[tuple[str, str]]] = defaultdict(set)
    lazy = []
    for module in modules:
        inside = {id(node) for outer in module.nodes if isinstance(outer, Function) for node in ast.walk(outer)}
        for node in module.nodes:
            targets = imported_modules(node, known)
            if targets and id(node) in inside:
                lazy.append(f"{module.name}:{getattr(node, 'lineno', 0)} {ast.unparse(node)}")
            for target in targets if not module.is_init else ():
                importers[target].add((module.name, module.package))
    files = [module for module in modules if not module.is_init]
    pairs = [(m, name, package) for m in files for name, package in importers[m.name] if len(importers[m.name]) == 1]
    satellites = [f"{module.name} (by {name})" for module, name, package in pairs if package == module.package]
    yield "modules with one importer, in the same package", f"{len(satellites)} of {len(files)}", satellites
    yield "internal imports inside functions", str(len(lazy)), lazy


def imported_modules(node: ast.AST, known: set[str]) -> set[str]:
    """Return the known modules that an import statement names: `from package import module` means the module."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & known
    if isinstance(node, ast.ImportFrom):
        return {f"{node.module}.{alias.name}" for alias in node.names} & known or {str(node.module)} & known
    return set()


def measure_extra_step(source: Path) -> Row:
    """Count the calls between modules that one more step costs, in a process that imports the measured checkout."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RERAIL")}
    command = [sys.executable, __file__, str(source.parent), "--trace"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    calls: list[tuple[int, str, str]] = json.loads(done.stdout)
    names = {name for _, *pair in calls for name in pair}
    engine = sum(name.startswith("rerail.engine.") for name in names)
    answer = f"{sum(count for count, *_ in calls)} through {len(names)} modules ({engine} of engine)"
    listed = [f"{count} {caller} -> {callee}" for count, caller, callee in sorted(calls, reverse=True)]
    return "cross-module calls of one extra step", answer, listed


def trace_extra_step(source: Path) -> list[tuple[int, str, str]]:
    """Return (calls, caller, callee) of one more step: the fewest calls in runs of six, minus those in runs of five."""
    sys.path.insert(0, str(source))
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        count_calls(2)  # fills caches and imports modules
        runs = [(count_calls(5), count_calls(6)) for _ in range(ROUNDS)]
        os.chdir("/")
    extra = {pair: min(six[pair] for _, six in runs) - min(five[pair] for five, _ in runs) for pair in runs[0][1]}
    return [(calls, *pair) for pair, calls in extra.items() if calls]


def count_calls(steps: int) -> Counter[tuple[str, str]]:
    """Run a pipeline of `true` steps in this process; count the calls of each module in each other, loaders left out."""
    from rerail.cli.main import call

    calls: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        callee: str = frame.f_globals.get("__name__", "")
        if event == "call" and callee.startswith("rerail."):
            outer, caller = frame.f_back, ""
            while outer and not (caller := outer.f_globals.get("__name__", "")).startswith("rerail."):
                outer = outer.f_back
            if outer and caller != callee and not caller.startswith("rerail.loaders"):
                calls[caller, callee] += 1

    Path("p.yaml").write_text("name: p\nsteps:\n" + "".join(f"- {{id: s{n}, run: 'true'}}\n" for n in range(steps)))
    sys.setprofile(profile)
    code = call(["run", "p.yaml", "-q", "--fresh", "--store", os.path.abspath(".rerail")])
    sys.setprofile(None)
    if code:
        raise SystemExit(f"a run of {steps} steps ended with exit code {code}")
    return calls


if __name__ == "__main__":
    sys.exit(main())
