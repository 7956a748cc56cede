"""Sealing: a step is complete once its artifacts are as declared, made durable and recorded."""

from __future__ import annotations

import json

import pytest

from tests.artifacts.pipelines import one
from tests.conftest import Project
from tests.pipelines import as_somebody

pytestmark = pytest.mark.privileges


@pytest.mark.parametrize(
    ("artifacts", "script", "words"),
    [
        ("[out.txt]", "true", "artifact out.txt is missing"),
        ("[out.txt]", ": > out.txt", "artifact out.txt is empty"),
        ("[{path: out.txt, min_size: 10}]", "echo short > out.txt", "has 6 bytes, fewer than min_size 10"),
        ("[{path: out.txt, max_size: 3}]", "echo long > out.txt", "has 5 bytes, more than max_size 3"),
        ("[{path: out.txt, contains: ['## Plan']}]", "echo none > out.txt", "does not contain '## Plan'"),
        ("[{path: out.txt, not_contains: TODO}]", "echo a TODO > out.txt", "contains 'TODO', which it must not"),
        ("[{path: out.json, format: json}]", "echo '{' > out.json", "is not valid json"),
        ("[{path: out.yaml, format: yaml}]", "echo 'a: [' > out.yaml", "is not valid yaml"),
        ("[{path: out.toml, format: toml}]", "echo 'a = ' > out.toml", "is not valid toml"),
        ("[{path: out.csv, format: csv}]", "printf 'a,b\\n1\\n' > out.csv", "line 2 has 1 columns, the first 2"),
        ("[{path: out.json, schema: s.json}]", 'echo \'{"n": "x"}\' > out.json', "does not fit s.json: $.n"),
        ("[{path: deep.yaml, format: yaml}]", "printf '[%.0s' $(seq 40000) > deep.yaml", "nested deeper"),
        ("['*.md']", "true", "artifact *.md is missing"),
        ("[d]", "mkdir d", "artifact d is an empty directory"),
        ("[out.txt]", "ln -s pipeline.yaml out.txt", "is a symbolic link to pipeline.yaml"),
        ("[out.txt]", "mkfifo out.txt", "is a FIFO"),
    ],
)
def test_a_step_without_its_artifact_has_failed_and_the_check_is_named(
    project: Project, artifacts: str, script: str, words: str
) -> None:
    (project.root / "s.json").write_text(json.dumps({"properties": {"n": {"type": "integer"}}}))
    project.pipeline(one(artifacts, script))

    done = project.rerail("run", "pipeline.yaml", check=1)

    assert words in done.stderr
    assert project.json("show", "last")["error"]["type"] == "ArtifactInvalid"


@pytest.mark.parametrize(
    ("artifacts", "script"),
    [
        ("[{path: out.txt, min_size: 0}]", ": > out.txt"),
        ("[{path: out.txt, optional: true}]", "true"),
        ("[{path: out.txt, min_size: 2B, max_size: 1kB, contains: [x], not_contains: [y]}]", "echo xx > out.txt"),
        ("['*.md', d]", "echo 1 > a.md; echo 2 > b.md; mkdir d; echo 3 > d/f"),
        ("[{path: out.json, schema: s.json}]", "echo '{\"n\": 1}' > out.json"),
    ],
)
def test_what_is_as_declared_completes(project: Project, artifacts: str, script: str) -> None:
    (project.root / "s.json").write_text(json.dumps({"properties": {"n": {"type": "integer"}}}))
    project.pipeline(one(artifacts, script))

    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert all(made["state"] == "intact" for made in project.json("show", "r")["steps"][0]["artifacts"])
    assert "is intact" in project.rerail("verify", "r", check=0).stderr


def test_a_failed_check_is_retried_like_any_failure(project: Project) -> None:
    project.pipeline(
        one("[out.txt]", "test -e mark && echo x > out.txt; touch mark") + "    retry: {attempts: 2, delay: 0s}\n"
    )

    project.rerail("run", "pipeline.yaml", check=0)

    assert project.ledger() == ["a", "a"]


def test_what_a_step_leaves_writing_is_noticed(project: Project) -> None:
    project.pipeline(
        "steps:\n  - id: a\n    run: |\n      head -c 50000000 /dev/zero > out.txt\n"
        "      (setsid sh -c 'while :; do echo more >> out.txt; done' &)\n    artifacts: [out.txt]\n"
    )

    done = project.rerail("run", "pipeline.yaml", "--id", "r")

    # rerail ends what a step leaves behind before it seals; if that once fails, the change is noticed.
    if done.returncode == 0:
        assert "is intact" in project.rerail("verify", "r", check=0).stderr
    else:
        assert "changes while it is read" in done.stderr


@pytest.mark.scenario("V5")
def test_an_artifact_that_cannot_be_read_fails_its_step(project: Project) -> None:
    project.pipeline(one("[d]", "mkdir -p d; echo one > d/x; chmod 0 d/x"))

    done = as_somebody(project, "run", "pipeline.yaml")

    assert done.returncode == 1
    assert "cannot be read or copied" in done.stderr
    assert "d/x: Permission denied" in done.stderr
