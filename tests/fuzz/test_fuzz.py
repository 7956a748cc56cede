"""A sample of the fuzzer, and every case it ever found something by. More of it by hand: `scripts/fuzz.py --minutes 30`."""

from __future__ import annotations

import ast
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import generator, harness, model, records
from tests.fuzz.generator import Generator
from tests.fuzz.harness import Outcome, run_case
from tests.fuzz.mutants import MUTANTS, ROOT

SAMPLE = range(1, 17)

# A case is repeated from its seed as far as its deaths allow, and as long as the generator draws the same.
FOUND = (
    (2, "inside a map no clean-up ran once the budget was spent"),
    (7002, "a pipeline that was marked pending did not run again"),
    (7007, "after `dlq drop` the other failed items were not tried again"),
    (7009, "after `dlq drop` in a fork the other failed items were not tried again"),
    (7012, "a map that was marked pending did not run again"),
    (20015, "a map with a lost artifact did not try its other failed items again"),
    (20017, "in a fork a loop that started over saw what its last pass had handed out"),
    (500005, "a step in doubt inside a map ran again without a word when the map's steps were edited"),
    (1200046, "a map whose command was edited kept the list that the old one had made"),
    (1400068, "marking a step in the last iteration of a complete loop repeated the steps beside it"),
    (20064, "a step in a loop that must not be repeated, and had lost its artifact, was not asked about"),
    (73808815, "the pages were silent about --from a pipeline that holds a step in doubt by a lost artifact"),
    (7000202, "a resume that got a signal just as it was done never ended"),
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is any: a kill, unlike a power cut, is no matter of disks, and disks here stall."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="rerail-fuzz-", dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def judged(outcome: Outcome) -> None:
    log = Path(outcome.directory, "log")
    told = "\n".join(f"{one.kind}: {one.text}" for one in outcome.violations)
    told += "\n" + log.read_text(encoding="utf-8")[-20_000:] if log.exists() else ""
    assert not outcome.violations, f"{told}\nagain: scripts/fuzz.py --seed {outcome.seed}"


@pytest.mark.sweep(2)
@pytest.mark.skipif("RERAIL_MUTANT" in os.environ, reason="planted bugs have tests of their own")
@pytest.mark.parametrize("seed", SAMPLE)
def test_what_comes_of_a_random_case_is_what_the_documentation_says(seed: int, place: Path) -> None:
    judged(run_case(seed, place))


@pytest.mark.sweep(2)
@pytest.mark.skipif("RERAIL_MUTANT" in os.environ, reason="planted bugs have tests of their own")
@pytest.mark.parametrize(("seed", "what"), FOUND)
def test_a_case_that_once_found_something_finds_nothing_now(seed: int, what: str, place: Path) -> None:
    judged(run_case(seed, place))


@pytest.mark.parametrize("module", [generator, model, records, harness], ids=lambda module: module.__name__)
def test_the_model_and_what_judges_by_it_import_nothing_of_rerail(module: object) -> None:
    path = str(getattr(module, "__file__"))  # noqa: B009 - a module
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [
        name for name in names if name.split(".")[0] == "rerail" or name.startswith(("tests.crash", "tests.conftest"))
    ]


def test_a_seed_is_the_same_case_every_time() -> None:
    for seed in range(50):
        assert generator.Writer(Generator(seed).case()).write() == generator.Writer(Generator(seed).case()).write()


def test_there_are_ten_planted_bugs_and_each_has_its_place() -> None:
    assert len(MUTANTS) == 10
    sources = "\0".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
    assert {mutant.name: sources.count(mutant.old) for mutant in MUTANTS} == {mutant.name: 1 for mutant in MUTANTS}
