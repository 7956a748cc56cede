"""Where artifacts may be, and where not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.artifacts.pipelines import failed_after, one, producer, two
from tests.conftest import Project
from tests.pipelines import pipeline


@pytest.mark.scenario("J2")
@pytest.mark.parametrize(
    ("artifacts", "words"),
    [
        ("[/etc/motd]", "is outside the project; `external: true` would allow that"),
        ("[../out.txt]", "is outside the project"),
        ("[a/../../out.txt]", "is outside the project"),
        ("[.rerail/x]", "is in rerail's own directory"),
        ("[.]", "cannot be an artifact"),
        ("[out.txt, ./out.txt]", "is listed twice"),
        ("[{path: x, min_sise: 3}]", "did you mean `min_size`?"),
        ("[{min_size: 3}]", "has no `path`"),
        ("[{path: x, min_size: big}]", "must be bytes or a size"),
        ("[7]", "lists paths and mappings"),
        ('["a\\0b"]', "is no path"),
    ],
)
def test_paths_that_cannot_be_artifacts_are_refused_before_anything_runs(
    project: Project, artifacts: str, words: str
) -> None:
    project.pipeline(one(artifacts, "true"))

    done = project.rerail("run", "pipeline.yaml", check=2)

    assert words in done.stderr
    assert project.ledger() == []
    assert not (project.root / ".rerail" / "runs").exists() or not list((project.root / ".rerail" / "runs").iterdir())


def test_an_external_artifact_is_sealed_and_restored(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    failed_after(project, two(f"echo one > {outside}", "true", more=f"{{path: {outside}, external: true}}"))
    outside.unlink()

    project.rerail("resume", "r", check=0)

    assert outside.read_text() == "one\n"


def test_paths_with_expressions(project: Project) -> None:
    failed_after(
        project,
        "params: {name: {default: 'a*b'}}\n"
        + two(
            'mkdir -p out; echo one > "out/"${{ params.name }}".md"; echo no > out/axb.md',
            "true",
            more='"out/${{ params.name }}.md"',
        ),
    )
    (project.root / "out" / "a*b.md").unlink()

    project.rerail("resume", "r", check=0)

    assert (project.root / "out" / "a*b.md").read_text() == "one\n"
    assert project.ledger() == ["a", "b", "b"]


def test_a_store_inside_the_project_is_nobodys_artifact(project: Project) -> None:
    project.pipeline(pipeline(producer("a", "echo {} > a.json", 'artifacts: ["**/*.json"]')))

    project.rerail("run", "pipeline.yaml", "--store", "state", check=0)


@pytest.mark.scenario("M1")
def test_a_run_whose_project_was_moved(project: Project, tmp_path: Path) -> None:
    project.pipeline(pipeline(producer("a", "echo x > a.txt", "artifacts: [a.txt]"), producer("b", "test -e ok")))
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    os.rename(project.root, tmp_path / "elsewhere")
    project.root = tmp_path / "elsewhere"
    (project.root / "ok").touch()
    (project.root / "a.txt").unlink()

    project.rerail("resume", "r", check=0)

    assert (project.root / "a.txt").read_text() == "x\n"


def test_a_path_that_is_out_of_bounds_since_an_edit_is_refused_before_its_step_is_paid_for(project: Project) -> None:
    text = pipeline(producer("a", "true"), producer("b", "test -e ok"))
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    project.pipeline(text + "    artifacts: [../x.txt]\n")

    assert "is outside the project" in project.rerail("resume", "r", check=2).stderr
    assert project.ledger() == ["a", "b"]
