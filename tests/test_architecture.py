"""The shape of the code: names, who may touch the disk. The direction of imports is import-linter's."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "rerail"
MODULES = sorted(SOURCE.rglob("*.py"))
BANNED = re.compile(r"(Manager|Helper|Util|Handler|Service|Context|Impl|Enhanced|Unified)")

# Calls that change a file system. Only durable may make them, with the exceptions below and why.
CHANGING = {
    "fsync", "fdatasync", "rename", "renames", "replace", "link", "symlink", "truncate", "ftruncate", "pwrite",
    "unlink", "remove", "rmdir", "mkdir", "makedirs", "write_text", "write_bytes", "touch", "rmtree", "move", "copy",
    "copyfile", "copytree", "posix_fallocate", "mkstemp", "flock", "lockf",
}  # fmt: skip
EXCEPTIONS = {
    ("executors/channels.py", "rmtree"): "channels are memory-backed and not state",
    ("executors/channels.py", "unlink"): "likewise",
    ("executors/channels.py", "os.open for writing"): "likewise",
    ("executors/channels.py", "open for writing"): "likewise",
    ("executors/watchdog.py", "open for writing"): "its own name and command line, in /proc",
    ("kinds/builtin.py", "makedirs"): "directories of the user's file in a `write` step",
    ("kinds/python_child.py", "open for writing"): "the channel of the step, in the child process",
    ("cli/main.py", "open for writing"): "standard streams we were started without",
    ("cli/commands/demo.py", "write_text"): "a scratch directory",
    ("cli/render/job_report.py", "open for writing"): "files of GitHub's runner, which are not state",
    ("cli/main.py", "os.open for writing"): "/dev/null in their place",
    ("executors/logs.py", "truncate"): "the second part of a log that is too long starts anew",
}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.sweep("all")
@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_say_what_they_are_and_names_say_what_things_are(path: Path) -> None:
    tree = parsed(path)
    assert ast.get_docstring(tree)
    assert path.stem not in ("utils", "helpers", "common", "base", "misc")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            assert not BANNED.search(node.name), node.name


# Packages and modules whose docstrings and comments name things; the rest joins as it is rewritten.
PLAIN = (
    "adapters/",
    "api.py",
    "app/",
    "artifacts/",
    "cli/",
    "core/",
    "durable/",
    "engine/",
    "executors/",
    "kinds/",
    "loaders/",
    "ports.py",
    "stores/",
    "errors.py",
    "processes.py",
    "registry.py",
    "testing/",
    "text.py",
    "walker.py",
)
# Words that only this project used for an invocation, an interruption, an output, a person.
PRIVATE = re.compile(
    r"\b(life|lives|driven|drives|cut off|hand(?:s|ed)? out|under way|somebody|nobody|whoever|he|him|his)\b",
    re.IGNORECASE,
)


def vague() -> re.Pattern[str]:
    """Return the measure of scripts/readability.py: words in a first line that stand where a noun belongs."""
    spec = importlib.util.spec_from_file_location("readability", SOURCE.parent.parent / "scripts" / "readability.py")
    assert spec is not None
    assert spec.loader is not None
    readability = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readability)
    pattern: re.Pattern[str] = readability.VAGUE
    return pattern


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a module with their lines, but those of commands, which are help texts."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            decorators = [ast.unparse(one) for one in getattr(node, "decorator_list", ())]
            if not any(re.search(r"\.(command|group)\(", one) for one in decorators):
                yield getattr(node, "lineno", 1), text


def test_docstrings_and_comments_use_the_words_of_the_field() -> None:
    banned = vague()
    found = []
    for path in MODULES:
        relative = str(path.relative_to(SOURCE))
        if not relative.startswith(PLAIN):
            continue
        for line, text in docstrings(path):
            if banned.search(text.partition("\n")[0]) or PRIVATE.search(text):
                found.append(f"{relative}:{line} {text}")
        with path.open(encoding="utf-8") as file:
            comments = [token for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT]
        found += [f"{relative}:{one.start[0]} {one.string}" for one in comments if PRIVATE.search(one.string)]
    assert not found, "name the type, the parameter or the process instead:\n" + "\n".join(found)


def test_every_command_has_a_module_of_its_name() -> None:
    from rerail.cli.main import COMMANDS

    assert all(where.startswith(f"rerail.cli.commands.{name}:") for name, (where, _) in COMMANDS.items())
    assert {path.stem for path in (SOURCE / "cli" / "commands").glob("*.py")} == {"__init__", *COMMANDS}


def changes_files(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if owner in ("os", "shutil", "Path", "fcntl", "tempfile") or name in ("write_text", "write_bytes"):
            if name in CHANGING:
                yield name, node.lineno
            if owner == "os" and name == "open" and re.search("O_WRONLY|O_RDWR|O_CREAT", ast.unparse(node)):
                yield "os.open for writing", node.lineno
        if name == "open" and not owner and len(node.args) > 1:
            mode = node.args[1]
            if isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+"):
                yield "open for writing", node.lineno


def test_only_durable_changes_files() -> None:
    used = set()
    for path in MODULES:
        relative = str(path.relative_to(SOURCE))
        if relative.startswith(("durable/", "testing/")):
            continue
        for name, line in changes_files(parsed(path)):
            assert (relative, name) in EXCEPTIONS, f"{relative}:{line} calls {name}; that belongs in durable"
            used.add((relative, name))
    assert used == set(EXCEPTIONS), "an exception nobody needs any more"


def test_only_stores_know_the_directory_store_and_where_it_keeps_what() -> None:
    """Everything else asks the port: a name joined to a directory of a run is true for one store only."""
    joined = re.compile(r"os\.path\.join\([^)]*\.(directory|root|path)\b\(?")
    for path in MODULES:
        relative = path.relative_to(SOURCE)
        if relative.parts[0] in ("stores", "testing"):
            continue
        text = path.read_text(encoding="utf-8")
        assert "DirectoryStore" not in text, relative
        assert not re.search(r"isinstance\((store|log), ", text), relative
        for found in joined.finditer(text):
            assert not re.search(r"\b(store|log|writer)\.", found[0]), f"{relative}: {found[0]}"


KNOWING = {"core/unit_id.py", "cli/render/github.py"}  # the second writes `::` around commands to GitHub
FILE_PATHS = {  # paths of files, which have the separator of step paths
    "cli/commands/doctor.py",
    "core/claims.py",
    "core/shell/programs.py",
    "core/staleness.py",
}
UNITS = {"unit", "controller", "outer", "inner", "loop", "scope", "last_unit", "last_completed"}
CUTS = {"split", "rsplit", "partition", "rpartition", "count", "startswith", "endswith", "removeprefix", "find", "rfind"}


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def units_taken_apart(tree: ast.Module, separators: set[str]) -> Iterator[int]:
    """Yield the lines that index the id of a unit, or take a step path or an item path apart by hand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and last_name(node.value) in UNITS:
            if node.slice.value in (0, 1):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            constants = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
            if node.func.attr in CUTS and constants & separators:
                yield node.lineno
            if node.func.attr == "join" and ast.unparse(node.func.value) == "'::'":
                yield node.lineno
        elif isinstance(node, ast.JoinedStr | ast.BinOp):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node.left, node.right]
            if any(isinstance(one, ast.Constant) and one.value == "::" for one in parts):
                yield node.lineno


def test_only_one_module_knows_how_the_paths_of_a_unit_are_written() -> None:
    found = []
    for path in MODULES:
        relative = str(path.relative_to(SOURCE))
        if relative not in KNOWING and relative.startswith(("app/", "cli/", "core/", "engine/", "executors/")):
            separators = {"::"} if relative in FILE_PATHS else {"::", "/"}
            found += [f"{relative}:{line}" for line in units_taken_apart(parsed(path), separators)]
    assert not found, "ask UnitId, or a function of core/unit_id.py"


@pytest.mark.parametrize(
    "code",
    [
        "unit[0]",
        "task.unit[1]",
        "step.split('/')",
        "step.startswith(outer + '/')",
        "step.startswith(f'{outer}/')",
        "item.rpartition('::')",
        "f'{item}::{key}'",
        "item + '::'",
        "'::'.join(keys)",
    ],
)
def test_a_unit_that_is_taken_apart_is_found(code: str) -> None:
    assert [*units_taken_apart(ast.parse(code), {"::", "/"})]


def facts_from_messages(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that look for a fact in a reason."""
    for node in (one for one in ast.walk(tree) if isinstance(one, ast.expr)):
        looked_at: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in CUTS:
                looked_at = [node.func.value]
            elif node.func.attr in ("match", "search", "fullmatch", "findall"):
                looked_at = node.args
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            looked_at = [one for one in node.comparators if isinstance(node.left, ast.Constant | ast.JoinedStr)]
        yield from (node.lineno for one in looked_at if isinstance(one, ast.Attribute) and one.attr in ("reason", "why"))


def test_no_code_reads_a_fact_out_of_a_reason() -> None:
    found = [f"{path.relative_to(SOURCE)}:{line}" for path in MODULES for line in facts_from_messages(parsed(path))]
    assert not found, "facts travel as data: give the event or the state a member"
    for code in ("unit.reason.startswith('marked')", "'marked' in unit.reason", "re.match('marked', unit.reason)"):
        assert [*facts_from_messages(ast.parse(code))]


def test_the_core_reads_no_clock() -> None:
    for path in (SOURCE / "core").rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("now", "utcnow", "today"), f"{path.name}:{node.lineno}"


@pytest.mark.scenario("J10", "J15")
def test_nothing_loads_code_from_state() -> None:
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & {"pickle", "marshal", "shelve"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path


def test_the_public_face_is_what_it_says() -> None:
    import rerail

    assert rerail.__all__ == sorted(rerail.__all__)
    assert all(hasattr(rerail, name) for name in rerail.__all__)


def test_everything_that_is_imported_is_declared() -> None:
    """What only comes along with a tool of ours is missing where that tool is."""
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text())["project"]
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines]
    declared = project["dependencies"] + extras
    names = {re.split(r"[<>=~ ]", line)[0].lower().replace("pyyaml", "yaml") for line in declared}
    for path in MODULES:
        if path.parent.name == "testing":  # for who writes tests, with pytest
            continue
        for node in ast.walk(parsed(path)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
            for module in modules:
                top = module.split(".")[0]
                assert top in {"rerail", *sys.stdlib_module_names, *names}, f"{path.name} imports {top}"


def test_what_depends_on_who_runs_it_is_tried_as_root_and_as_an_ordinary_user() -> None:
    """Whoever changes permissions, owners, limits or namespaces in a test says so with a marker, which .ci/run selects."""
    depends = re.compile(r"as_somebody|geteuid|setuid|chown|unshare|RLIMIT|\.chmod\(|chmod [0-7]|census\(")
    for path in Path(__file__).parent.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if depends.search(text) and path != Path(__file__):
            assert re.search(r"pytest\.mark\.(privileges|needs_root)", text), path


TESTS = Path(__file__).parent
OTHER_ORDER = {
    "crash",
    "docs",
    "fuzz",
    "test_architecture.py",
    "test_sweeps.py",
}  # by kind of fault, by page, and our own
TOPICS = (  # what no single module does: in e2e, through the command line
    "action approvals bad_files cascade concurrency crashing_steps expressions failure_modes from_and_until hooks hostile_input "
    "plan_matches_run processes rate_limits reasons resume secret_leaks secrets skip"
)


def test_a_test_stands_where_its_module_stands() -> None:
    """tests/stores/test_journal.py is about stores/journal.py; a topic of its own is named above, and there is a file for each."""
    paths = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]
    for path in paths:
        if path.parts[0] not in {*OTHER_ORDER, "e2e"}:
            assert (SOURCE / path.parent / path.name.removeprefix("test_")).exists(), f"no such module for tests/{path}"
    topics = [path.stem.removeprefix("test_") for path in paths if path.parts[0] == "e2e"]
    assert sorted(topics) == TOPICS.split()


PAGE = SOURCE.parent.parent / "ARCHITECTURE.md"


def defined() -> dict[str, list[str]]:
    """Every class and function of the package by name, with the modules that define it; modules by their own name."""
    found: dict[str, list[str]] = {}
    for path in MODULES:
        found.setdefault(path.stem, []).append("")
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found.setdefault(node.targets[0].id, []).append(str(path.relative_to(SOURCE)))
    return found


def test_no_class_name_exists_twice() -> None:
    classes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert not {name: where for name, where in classes.items() if len(where) > 1}


def test_every_word_of_the_glossary_is_a_name_in_the_code() -> None:
    glossary = PAGE.read_text(encoding="utf-8").partition("## Glossary")[2].partition("## ")[0]
    rows = [line.split("|") for line in glossary.splitlines() if line.startswith("| ") and not line.startswith("| word")]
    assert len(rows) >= 20
    known = defined()
    for row in rows:
        for name in re.findall(r"`(\w+)`", row[3]):
            assert name in known, f"{row[1].strip()}: no {name}"


def test_every_path_that_the_architecture_page_names_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    root = SOURCE.parent.parent
    for path in set(re.findall(r"\b[\w/]+\.py\b", text)) | set(re.findall(r"\(([\w/.-]+\.md)\)", text)):
        assert (SOURCE / path).exists() or (root / path).exists(), path


def test_an_import_inside_a_function_says_why_it_waits() -> None:
    silent = []
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        imports = {node.lineno for one in functions for node in ast.walk(one) if isinstance(node, ast.ImportFrom)}
        for number in sorted(imports):
            first = number
            while first - 1 in imports:  # a block of imports has one reason
                first -= 1
            block = lines[first - 1 : number]
            if "from rerail" in lines[number - 1] and not any("#" in line for line in (lines[first - 2], *block)):
                silent.append(f"{path.relative_to(SOURCE)}:{number}: {lines[number - 1].strip()}")

    assert not silent, "an internal import inside a function needs a comment that says why"
