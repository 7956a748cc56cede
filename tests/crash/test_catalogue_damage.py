"""State and artifacts as editors, old disks, other programs and other versions leave them, through the real commands.

Every state comes from a real run that was then really changed; what ran is counted in a ledger outside the state.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rerail import api
from rerail.core.model import Call, Pipeline, Step
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId
from rerail.errors import StateDamaged, StateError
from rerail.stores.directory import DirectoryStore
from tests.conftest import Project

PIPELINE = """\
steps:
  - id: one
    run: echo one >> $LEDGER; echo n=1 >> "$RERAIL_OUTPUT"
  - id: two
    run: echo two >> $LEDGER; test -e fixed
"""
JOURNAL = "journal-0001.jsonl"
BOM = b"\xef\xbb\xbf"

Edit = Callable[[bytes], bytes]
EDITS: dict[str, Edit] = {
    "one space more": lambda data: data.replace(b'": ', b'" : ', 1),
    "line ends of Windows": lambda data: data.replace(b"\n", b"\r\n"),
    "a byte order mark": lambda data: BOM + data,
    "a newline at the end": lambda data: data + b"\n",
    "indented anew": lambda data: json.dumps(json.loads(data), indent=4).encode() + b"\n",
    "one line": lambda data: json.dumps(json.loads(data), separators=(",", ":")).encode(),
}


def lines(data: bytes) -> list[bytes]:
    return data.rstrip(b"\n").split(b"\n")


LINE_EDITS: dict[str, Edit] = {
    "a newline before all": lambda data: b"\n" + data,
    "a newline in between": lambda data: data.replace(b"\n", b"\n\n", 1),
    "spaces after colons": lambda data: b"\n".join(json.dumps(json.loads(line)).encode() for line in lines(data)) + b"\n",
    "a byte order mark": EDITS["a byte order mark"],
    "line ends of Windows": EDITS["line ends of Windows"],
}


def failed_run(project: Project, text: str = PIPELINE) -> Path:
    """A run whose last step has failed, and will not fail again; its directory."""
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "fixed").touch()
    return project.run_dir("r")


def read(project: Project) -> tuple[RunState, tuple[str, ...]]:
    recording = DirectoryStore(str(project.root / ".rerail")).read("r")
    return recording.state, recording.notices


@pytest.mark.scenario("E9")
def test_a_checkpoint_that_an_editor_saved_again_is_rebuilt_and_kept(project: Project) -> None:
    """The meaning is the same, the bytes are not: said, put aside as it was found, no step lost or repeated."""
    run = failed_run(project)
    truth, _ = read(project)
    good = (run / "checkpoint.json").read_bytes()
    for name, edit in EDITS.items():
        edited = edit(good)
        assert edited != good, name
        (run / "checkpoint.json").write_bytes(edited)
        state, notices = read(project)
        assert state == truth, name
        assert any("checkpoint.json is damaged" in notice for notice in notices), name

    resumed = project.rerail("resume", "r", check=0)

    assert "checkpoint.json is damaged" in resumed.stderr
    assert [path.read_bytes() for path in run.glob("checkpoint.json.bad-*")] == [edited]
    assert project.ledger() == ["one", "two", "two"]
    rebuilt = json.loads((run / "checkpoint.json").read_bytes())
    assert rebuilt["status"] == "completed"
    assert rebuilt["steps"][0]["outputs"] == {"n": 1}


@pytest.mark.scenario("E9")
def test_a_journal_that_an_editor_saved_again_is_refused_and_repaired(project: Project) -> None:
    """It is refused with its place and left alone; a repair keeps the edited file and what is proved without it."""
    run = failed_run(project)
    truth = read(project)
    good = (run / JOURNAL).read_bytes()
    (run / JOURNAL).write_bytes(good + b"\n")
    assert read(project) == truth, "a newline at the end is nothing: space written in advance looks the same"
    for name, edit in LINE_EDITS.items():
        edited = edit(good)
        assert edited != good, name
        (run / JOURNAL).write_bytes(edited)
        with pytest.raises(StateDamaged, match=JOURNAL):
            read(project)
    before = project.state_digest()

    refused = project.rerail("resume", "r", check=6)

    assert f"{JOURNAL}: damaged at byte 0" in refused.stderr
    assert "next: rerail repair r" in refused.stderr
    assert project.state_digest() == before
    assert project.ledger() == ["one", "two"]
    project.rerail("repair", "r", check=0)
    assert [path.read_bytes() for path in run.glob(f"evidence-*/{JOURNAL}")] == [edited]
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["one", "two", "two"]


def obstruct(path: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "spaces":
            path.write_text(" " * 4096)
        case "empty":
            path.touch()


@pytest.mark.scenario("E13")
@pytest.mark.timeout(60)
def test_a_journal_that_is_no_file_is_refused_and_nobody_waits_for_it(project: Project) -> None:
    """Opening a pipe nobody writes to would wait for ever; every command comes back, and leaves it as it is."""
    run = failed_run(project)
    obstruct(run / JOURNAL, "directory")
    with pytest.raises(StateError, match=f"{JOURNAL}: cannot be read"):
        read(project)
    obstruct(run / JOURNAL, "fifo")

    for command in ("resume", "repair"):
        refused = project.rerail(command, "r", check=6)
        assert f"{JOURNAL}: cannot be read" in refused.stderr
        assert "next: " in refused.stderr
    assert project.rerail("list", check=0).stdout.count("damaged") == 1
    assert (run / JOURNAL).is_fifo()
    assert project.ledger() == ["one", "two"]


@pytest.mark.scenario("E13")
def test_a_journal_without_content_is_missed(project: Project) -> None:
    """checkpoint.json knows that there was more: no fresh start, and nothing is changed."""
    run = failed_run(project)
    for kind in ("empty", "spaces"):
        obstruct(run / JOURNAL, kind)
        with pytest.raises(StateDamaged):
            read(project)
    before = project.state_digest()

    refused = project.rerail("resume", "r", check=6)

    assert "next: rerail repair r" in refused.stderr
    assert project.state_digest() == before
    assert project.ledger() == ["one", "two"]


@pytest.mark.scenario("E13")
@pytest.mark.timeout(60)
def test_all_but_the_journal_is_made_anew_where_no_file_is(project: Project) -> None:
    """What the journal proves is written again; only the step that had failed runs."""
    run = failed_run(project)
    truth, _ = read(project)
    names = ("checkpoint.json", "run.json", "pipeline.yaml")
    for kinds in (["spaces"] * 3, ["empty"] * 3, ["directory", "fifo", "directory"], ["fifo", "directory", "fifo"]):
        for name, kind in zip(names, kinds, strict=True):
            obstruct(run / name, kind)
        assert read(project)[0] == truth, kinds

    project.rerail("resume", "r", check=0)

    assert project.ledger() == ["one", "two", "two"]
    assert json.loads((run / "checkpoint.json").read_bytes())["status"] == "completed"
    assert json.loads((run / "run.json").read_bytes())["run_id"] == "r"


ALTERED = {
    "keys": "{1: 2}",
    "pair": "(1, 2)",
    "deep": "[{'x': [(1, 2)]}]",
    "many": "{1}",
    "raw": "b'x'",
    "day": "__import__('datetime').date(2026, 1, 2)",
    "path": "__import__('pathlib').Path('x')",
    "nan": "float('nan')",
    "half": "chr(0xd800)",
}


@pytest.mark.scenario("E12")
def test_python_steps_that_return_what_json_would_alter_have_failed(project: Project) -> None:
    """What is recorded of a step is what it returned, or nothing: no number becomes text, no tuple a list."""
    module = "".join(f"def {name}():\n    return {{'v': {value}}}\n" for name, value in ALTERED.items())
    project.pipeline(module + "def good():\n    return {'v': [1, {'k': None}, 'é', 1.0]}\n", "mod.py")
    steps = "".join(f"  - {{id: {name}, needs: [], python: 'mod:{name}'}}\n" for name in (*ALTERED, "good"))
    project.pipeline("steps:\n" + steps)

    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    checkpoint = json.loads((project.run_dir("r") / "checkpoint.json").read_bytes())
    found = {step["id"]: step for step in checkpoint["steps"]}
    assert found["good"]["outputs"] == {"v": [1, {"k": None}, "é", 1.0]}
    for name in ALTERED:
        assert (found[name]["status"], found[name]["outputs"]) == ("failed", {}), name
        assert "JSON" in found[name]["error"]["message"], name
    assert "values that JSON would alter" in found["keys"]["error"]["message"]


@pytest.mark.scenario("E12")
@pytest.mark.parametrize("value", [{1: 2}, (1, 2), [{1}], b"x"], ids=["keys", "pair", "many", "raw"])
def test_functions_of_the_library_that_return_what_json_would_alter_have_failed(tmp_path: Path, value: object) -> None:
    pipeline = Pipeline(name="p", steps=(Step(id="a", action=Call(target="f")),))
    store = DirectoryStore(str(tmp_path / ".rerail"))
    request = api.StartRequest(pipeline_path="p.yaml", run_id="r")

    done = api.start_pipeline(store, pipeline, b"", request, functions={"f": lambda: {"v": value}})

    assert done.end.status == "failed"
    state = store.read("r").state.units[UnitId("a")]
    assert state.outputs == {}
    assert state.error is not None
    assert state.error.message.startswith("outputs.v")
    assert "JSON cannot hold exactly" in state.error.message or "a key that is not text" in state.error.message


UNKNOWN = """\
import sys, msgspec
from datetime import UTC, datetime
from rerail.stores.directory import DirectoryStore

class Teleported(msgspec.Struct, tag_field="event", tag="step-teleported", kw_only=True):
    at: datetime
    step: str

log = DirectoryStore(sys.argv[1]).own("r")
log.append([Teleported(at=datetime.now(UTC), step="two")])
log.close()
"""


@pytest.mark.scenario("L3")
def test_a_record_of_a_kind_this_version_does_not_know_is_refused_and_left_alone(project: Project) -> None:
    """A newer rerail wrote it, with right sums: it is neither skipped nor taken for damage, not even by repair."""
    failed_run(project)
    subprocess.run([sys.executable, "-c", UNKNOWN, str(project.root / ".rerail")], env=project.env, check=True)
    before = project.state_digest()

    for command in ("resume", "repair"):
        refused = project.rerail(command, "r", check=6)
        assert "a record this rerail does not know" in refused.stderr, command
        assert "next: pip install --upgrade rerail" in refused.stderr, command
    assert project.state_digest() == before
    assert project.ledger() == ["one", "two"]


MEDDLER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first MEDDLE_TIMES times that somebody begins to read the file MEDDLE, it is written to at once: at its end, or over its
   start. */
ssize_t read(int fd, void *buffer, size_t count) {
    static ssize_t (*real)(int, void *, size_t);
    static int done;
    char link[64], path[4096];
    const char *wanted = getenv("MEDDLE");
    if (!real) real = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    ssize_t result = real(fd, buffer, count);
    if (!wanted || result <= 0 || done >= atoi(getenv("MEDDLE_TIMES"))) return result;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || (size_t)length != strlen(wanted) || memcmp(path, wanted, length)) return result;
    if (lseek(fd, 0, SEEK_CUR) != result) return result;
    int other = open(wanted, O_WRONLY | O_CLOEXEC);
    if (other >= 0 && pwrite(other, "!", 1, strcmp(getenv("MEDDLE_AT"), "end") ? 0 : lseek(other, 0, SEEK_END)) == 1) done++;
    if (other >= 0) close(other);
    return result;
}
"""


Meddle = Callable[[str, int, str], None]


@pytest.fixture(scope="module")
def meddler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "this test needs a C compiler (Debian: apt-get install gcc)"
    directory = tmp_path_factory.mktemp("meddler")
    (directory / "meddler.c").write_text(MEDDLER)
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", "meddler.so", "meddler.c", "-ldl"]
    subprocess.run(command, cwd=directory, check=True)
    return directory / "meddler.so"


@pytest.fixture
def meddle(project: Project, meddler: Path) -> Meddle:
    """Have somebody write to a file of the project while rerail reads it."""

    def meddle(name: str, times: int, at: str) -> None:
        preload = f"{meddler} {os.environ.get('LD_PRELOAD', '')}".strip()
        more = {"LD_PRELOAD": preload, "MEDDLE": str(project.root / name), "MEDDLE_TIMES": str(times), "MEDDLE_AT": at}
        project.env.update(more)

    return meddle


SEALED = """\
steps:
  - id: one
    run: |
      echo one >> $LEDGER
      head -c SIZE /dev/zero > out.bin
      touch -d @1000000000 out.bin
    artifacts: [out.bin]
  - id: two
    run: echo two >> $LEDGER; test -e fixed
"""


@pytest.mark.scenario("E7", "V5")
@pytest.mark.parametrize("size", ["5000", "3000000"], ids=["small", "large"])
def test_an_artifact_that_never_holds_still_while_it_is_sealed_fails_its_step(
    project: Project, meddle: Meddle, size: str
) -> None:
    """Somebody appends during every reading: no digest can be vouched for, so the step has not completed."""
    meddle("out.bin", 1_000, "end")
    project.pipeline(SEALED.replace("SIZE", size))

    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    assert "out.bin changes while it is read" in done.stderr
    assert project.ledger() == ["one"]
    assert not list((project.root / ".rerail" / "objects").glob("??/*"))


@pytest.mark.scenario("E7", "V5")
@pytest.mark.parametrize("size", ["5000", "3000000"], ids=["small", "large"])
def test_an_artifact_that_changed_once_while_it_was_sealed_is_read_again(
    project: Project, meddle: Meddle, size: str
) -> None:
    """The digest and the kept copy are of what stands there in the end, not of a mixture of before and after."""
    meddle("out.bin", 1, "start")
    failed_run(project, SEALED.replace("SIZE", size))
    content = (project.root / "out.bin").read_bytes()
    assert content.count(b"!") == 1

    (project.root / "out.bin").unlink()

    project.rerail("resume", "r", check=0)
    assert (project.root / "out.bin").read_bytes() == content
    assert project.ledger() == ["one", "two", "two"]


@pytest.mark.scenario("E7")
def test_an_input_that_never_holds_still_fails_its_step_before_it_runs(project: Project, meddle: Meddle) -> None:
    meddle("in.bin", 1_000, "end")
    (project.root / "in.bin").write_bytes(bytes(5000))
    project.pipeline("steps: [{id: a, run: 'echo a >> $LEDGER', inputs: [in.bin]}]\n")

    done = project.rerail("run", "pipeline.yaml", check=1)

    assert "in.bin changes while it is read" in done.stderr
    assert project.ledger() == []


@pytest.mark.scenario("V5")
def test_a_sparse_artifact_and_one_of_many_files_are_proved_to_their_last_byte(project: Project) -> None:
    """One bit behind a hole, one of five hundred files: noticed although size and times are the same, and restored."""
    run = """\
steps:
  - id: one
    run: |
      echo one >> $LEDGER
      truncate -s 20M hole.bin; echo end >> hole.bin
      mkdir -p many; seq 500 | split -l 1 -a 4 -d - many/
    artifacts: [hole.bin, many]
  - id: two
    run: echo two >> $LEDGER; test -e fixed
"""
    failed_run(project, run)
    hole, small = project.root / "hole.bin", project.root / "many" / "0499"
    damaged = {hole: b"", small: b""}
    for path in damaged:
        status = path.stat()
        damaged[path] = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(-2, os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-2, os.SEEK_END)
            file.write(bytes([byte ^ 1]))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    resumed = project.rerail("resume", "r", check=0)

    assert "[warn] hole.bin was changed since step one wrote it (20971524 bytes, as before) -- restored" in resumed.stderr
    assert "[warn] many" in resumed.stderr, resumed.stderr
    assert {path: path.read_bytes() for path in damaged} == damaged
    assert len(list((project.root / "many").iterdir())) == 500
    assert project.ledger() == ["one", "two", "two"]


NAMES = ["-rf", "new\nline", " spaces ", "é", "e\u0301", "q'\"", "$(touch pwned)", "`x`", "a;b", "*", "\\"]
GLOB = """\
steps:
  - id: m
    map: {over: {glob: 'in/*'}}
    steps:
      - run: printf '%s\\0' ${{ item }} >> $LEDGER; cat ./${{ item }}
"""


@pytest.mark.scenario("V6")
def test_files_with_odd_names_are_items_under_their_own_names(project: Project) -> None:
    """Each name arrives once, byte for byte: the two ways to write é are two files."""
    (project.root / "in").mkdir()
    for name in NAMES:
        (project.root / "in" / name).write_text("x")
    project.pipeline(GLOB)

    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    seen = project.ledger_file.read_bytes().decode().split("\0")[:-1]
    assert sorted(seen) == sorted(f"in/{name}" for name in NAMES)
    assert not (project.root / "pwned").exists()


@pytest.mark.scenario("V6")
def test_a_file_name_that_is_no_text_fails_its_map_by_name_and_drops_nobody(project: Project) -> None:
    """Such a name cannot be recorded; what must not happen is that the map completes without it."""
    (project.root / "in").mkdir()
    (project.root / "in" / "good").write_text("x")
    with open(os.fsencode(project.root / "in") + b"/a\xff.txt", "wb"):
        pass
    project.pipeline(GLOB)

    done = project.rerail("run", "pipeline.yaml", "--id", "r", check=1)

    assert "is not text that can be recorded" in done.stderr
    assert "in/a\\udcff.txt" in done.stderr
    assert all(line.isprintable() for line in done.stderr.splitlines())
    os.unlink(os.fsencode(project.root / "in") + b"/a\xff.txt")
    project.rerail("resume", "r", check=0)
    assert project.ledger_file.read_bytes() == b"in/good\0"
