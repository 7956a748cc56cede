"""What makes a completed step run again: inputs and needs that came out different."""

from __future__ import annotations

import pytest

from tests.artifacts.pipelines import NOTE, producer
from tests.conftest import Project
from tests.pipelines import note, pipeline, step


@pytest.mark.scenario("L7")
def test_a_changed_input_runs_its_step_again_and_an_unchanged_result_stops_there(project: Project) -> None:
    (project.root / "source.txt").write_text("1 2 3\n")
    project.pipeline(
        f"steps:\n  - id: count\n    run: |\n      {NOTE}\n      wc -w < source.txt > count.txt\n"
        "    inputs: [source.txt]\n    artifacts: [count.txt]\n"
        f"  - id: use\n    run: |\n      {NOTE}\n      cp count.txt used.txt\n    artifacts: [used.txt]\n"
        f"  - id: last\n    run: {NOTE}; test -e ok\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    (project.root / "source.txt").write_text("4 5 6\n")

    done = project.rerail("resume", "r", check=0)

    assert "input source.txt changed" in done.stderr
    assert "use: unchanged: its inputs are the same" in done.stderr
    assert project.ledger() == ["count", "use", "last", "count", "last"]


def test_with_inputs_declared_they_decide_not_the_rest_of_what_a_step_needs(project: Project) -> None:
    project.pipeline(
        f"steps:\n  - id: a\n    run: |\n      {NOTE}\n      echo fixed > a.txt; date +%N > b.txt\n"
        "    artifacts: [{path: a.txt, keep: false}, b.txt]\n"
        f"  - id: reads-a\n    needs: [a]\n    run: {NOTE}\n    inputs: [a.txt]\n"
        f"  - id: reads-all\n    needs: [a]\n    run: {NOTE}\n"
        f"  - id: last\n    needs: [reads-a, reads-all]\n    run: {NOTE}; test -e ok\n"
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", "--parallel", "1", check=1)
    (project.root / "ok").touch()
    (project.root / "a.txt").unlink()

    project.rerail("resume", "r", "--parallel", "1", check=0)

    assert project.ledger()[4:] == ["a", "reads-all", "last"]


def test_what_was_skipped_in_between_came_out_different(project: Project) -> None:
    text = pipeline(
        producer("a", "echo one > a.txt", "when: 1 == 1", "artifacts: [a.txt]"),
        producer("b", "echo saw ${{ steps.a.status }} > b.txt", "artifacts: [b.txt]"),
    )
    project.pipeline(text)
    project.rerail("run", "pipeline.yaml", "--id", "r", check=0)
    project.pipeline(text.replace("1 == 1", "1 == 2"))
    project.rerail("resume", "r", check=0)
    assert (project.root / "b.txt").read_text() == "saw skipped\n"
    project.pipeline(text)
    project.rerail("resume", "r", check=0)

    assert (project.root / "b.txt").read_text() == "saw completed\n"


def test_an_input_that_is_written_over_later_was_still_what_was_read(project: Project) -> None:
    project.pipeline(
        pipeline(
            producer("write", "echo one > x.txt", "artifacts: [x.txt]"),
            producer("read", "cat x.txt > read.txt", "inputs: [x.txt]", "artifacts: [read.txt]"),
            producer("append", "echo two >> x.txt", "inputs: [x.txt]", "artifacts: [x.txt]"),
            producer("last", "test -e ok"),
        )
    )
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    (project.root / "ok").touch()
    project.rerail("resume", "r", check=0)
    assert project.ledger() == ["write", "read", "append", "last", "last"]

    text = (project.root / "pipeline.yaml").read_text()
    project.pipeline(text.replace("echo two", "echo zwei"))
    project.rerail("resume", "r", check=0)

    assert project.ledger()[5:] == ["append", "last"]
    assert (project.root / "x.txt").read_text() == "one\nzwei\n"
    assert (project.root / "read.txt").read_text() == "one\n"


def test_a_retry_on_the_way_does_not_make_a_product_different(project: Project) -> None:
    def text(script: str) -> str:
        return pipeline(
            step("a", note(script), retry="{attempts: 3, delay: 0}"), step("b", note()), step("c", note("test -e fixed"))
        )

    project.pipeline(text("echo x=1 >> $RERAIL_OUTPUT"))
    project.rerail("run", "pipeline.yaml", check=1)
    project.pipeline(text("test $RERAIL_ATTEMPT = 3\necho x=1 >> $RERAIL_OUTPUT"))
    (project.root / "fixed").touch()
    project.rerail("resume", check=0)

    assert project.ledger() == ["a", "b", "c", "a", "a", "c"]
