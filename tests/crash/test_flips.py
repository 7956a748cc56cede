"""A bit of any state file changes: nothing that is wrong is believed.

The journal and checkpoint.json have sweeps of their own (test_damage.py); here is everything else that a run with maps and
artifacts leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rerail.app.runs import summaries
from rerail.errors import StateError
from rerail.stores.content_store import DirectoryContentStore
from rerail.stores.directory import DirectoryStore
from tests.conftest import Project
from tests.crash.figures import figure
from tests.sweeps import part

PIPELINE = """
steps:
  - {id: a, run: 'echo a >> "$LEDGER"; mkdir -p tree; echo one > tree/one; echo two > tree/two', artifacts: [tree]}
  - id: m
    map: {over: [x, y]}
    steps: [{run: 'echo "m-${{ item }}" >> "$LEDGER"; echo "n=1" >> "$RERAIL_OUTPUT"'}]
  - {id: z, run: 'echo z >> "$LEDGER"; test -e fixed'}
"""
MOST_FLIPS = part(40, 700)  # of one file; a longer one is not flipped at every byte


@pytest.fixture
def failed(project: Project) -> Project:
    project.pipeline(PIPELINE)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    return project


def flips(path: Path) -> Iterator[bytes]:
    good = path.read_bytes()
    stride = max(len(good) // MOST_FLIPS, 1)
    for at in range(0, len(good), stride):
        yield good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :]


def sweep(path: Path, holds: Callable[[], None]) -> int:
    """Flip a file again and again, and look each time; it is as before afterwards."""
    good, count = path.read_bytes(), 0
    try:
        for bad in flips(path):
            path.write_bytes(bad)
            holds()
            count += 1
    finally:
        path.write_bytes(good)
    return count


@pytest.mark.sweep(1)
@pytest.mark.scenario("E1", "E2", "E5")
def test_files_of_the_run_are_believed_only_if_they_are_true(failed: Project) -> None:
    store = DirectoryStore(str(failed.root / ".rerail"))
    truth = store.read("r")
    text = store.pipeline("r", truth.state.pipeline_sha256)

    def holds() -> None:
        try:
            found = store.read("r")
            assert (found.state, found.header) == (truth.state, truth.header)
            assert store.pipeline("r", truth.state.pipeline_sha256) == text
        except StateError as error:
            assert error.hint

    run = failed.run_dir("r")
    paths = [run / "run.json", run / "pipeline.yaml", run / "lock", *(run / "history").iterdir()]
    count = sum(sweep(path, holds) for path in paths)
    figure("T5", "flips of other state files, none of them believed", count)
    assert count > part(50, 1000)
    assert store.read("r").state == truth.state


@pytest.mark.sweep(1)
@pytest.mark.scenario("E8")
def test_the_index_is_believed_only_if_it_is_true(failed: Project) -> None:
    store = DirectoryStore(str(failed.root / ".rerail"))
    truth = summaries(store)

    def holds() -> None:
        (row,), (wanted,) = summaries(store), truth
        assert {key: row[key] for key in wanted if key != "owner"} == {
            key: wanted[key] for key in wanted if key != "owner"
        }

    count = sweep(failed.root / ".rerail" / "index.jsonl", holds)
    figure("T5", "flips of other state files, none of them believed", count)
    assert count > part(20, 100)


@pytest.mark.sweep(1)
@pytest.mark.scenario("E6")
def test_a_copy_in_the_content_store_is_used_only_if_it_is_whole(failed: Project) -> None:
    place = failed.root / ".rerail" / "objects"
    objects = DirectoryContentStore(str(place))
    kept = [path for path in place.rglob("*") if path.is_file() and len(path.name) > 40]
    assert len(kept) >= 3  # two files and the list of them
    for path in kept:
        digest = next(part for part in (path.name, path.parent.name + path.name) if len(part) == 64)
        assert objects.defect(digest) == ""

        def holds(digest: str = digest) -> None:
            assert objects.defect(digest) or objects.read(digest) is None

        figure("T5", "flips of other state files, none of them believed", sweep(path, holds))


@pytest.mark.scenario("E6")
def test_results_of_a_map_that_were_changed_are_put_back(failed: Project) -> None:
    (results,) = (failed.run_dir("r") / "results").iterdir()
    good = results.read_bytes()
    results.write_bytes(next(flips(results)))
    (failed.root / "fixed").touch()

    done = failed.rerail("resume", "r", check=0)

    assert "its results were lost or damaged; rebuilt" in done.stderr
    assert results.read_bytes() == good
    assert failed.ledger() == ["a", "m-x", "m-y", "z", "z"]
