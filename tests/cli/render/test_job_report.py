"""The summary and the outputs of a GitHub job, read as GitHub reads them: Markdown by a parser of its own, outputs by the rules."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from rerail.cli.render import job_report
from rerail.cli.render.job_report import fenced, fitting, markdown, output_lines
from tests.conftest import Project

PIPELINE = """
name: "my *pipe* | <b>x</b>"
outputs: {word: "${{ steps.a.outputs.word }}", many: [1, 2], run-id: mine, "odd name": 1}
steps:
  - {id: a, run: "echo '{\\"word\\": \\"one\\\\nstatus=evil\\\\ntwo\\"}' >> $RERAIL_OUTPUT; echo '{\\"cost_usd\\": 0.25}' >> $RERAIL_METRICS"}
  - {id: m, map: {over: [x, y], max_failures: 1}, steps: [{run: "printf '<b> | \\\\140\\\\140\\\\140\\\\140 [l](u)\\\\n' >&2; test ${{ item }} = x"}]}
  - {id: z, run: "printf '<b> \\\\140\\\\140\\\\140\\\\140 **why**\\\\n' >&2; test -e ok"}
"""


@pytest.fixture
def job(project: Project) -> Project:
    project.env |= {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_OUTPUT": str(project.root.parent / "output"),
        "GITHUB_STEP_SUMMARY": str(project.root.parent / "summary"),
    }
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        Path(project.env[name]).touch()
    project.pipeline(PIPELINE)
    return project


def outputs(text: str) -> dict[str, str]:
    """The outputs that GitHub finds in its file."""
    found: dict[str, str] = {}
    lines = iter(text.split("\n"))
    for line in lines:
        if "<<" in line and ("=" not in line or line.index("<<") < line.index("=")):
            key, _, end = line.partition("<<")
            value = []
            for inner in lines:
                if inner == end:
                    break
                value.append(inner)
            else:
                raise AssertionError(f"no end of {key}")
            found[key] = "\n".join(value)
        elif line:
            key, equals, found[key] = line.partition("=")
            assert equals, line
    return found


def read(project: Project, name: str) -> str:
    return Path(project.env[name]).read_text(encoding="utf-8")


def html(text: str) -> str:
    return str(MarkdownIt("commonmark").enable("table").render(text))


def test_the_outputs_of_a_run_are_those_of_the_step_and_no_value_adds_another(job: Project) -> None:
    job.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    assert outputs(read(job, "GITHUB_OUTPUT")) == {"run-id": "r", "status": "failed", "outputs": "{}"}
    (job.root / "ok").touch()
    job.rerail("resume", "r", check=0)
    expected = {"word": "one\nstatus=evil\ntwo", "many": [1, 2], "run-id": "mine", "odd name": 1}

    for _ in range(2):
        found = outputs(read(job, "GITHUB_OUTPUT"))
        assert json.loads(found.pop("outputs")) == expected
        assert found == {"run-id": "r", "status": "completed", "word": expected["word"], "many": "[1,2]"}
        Path(job.env["GITHUB_OUTPUT"]).write_text("")
        job.rerail("run", "pipeline.yaml", "--id", "r", "--resume", check=0)  # nothing is left to do, but to say that


def test_the_summary_has_steps_items_costs_and_failures_and_nothing_in_it_is_markup(job: Project) -> None:
    job.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    page = html(read(job, "GITHUB_STEP_SUMMARY"))
    rows = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", page, re.DOTALL)[1:]]

    assert "my *pipe* | &lt;b&gt;x&lt;/b&gt;: run r failed</h3>" in page
    assert [(row[0], row[1][2:], row[2], row[4]) for row in rows] == [
        ("a", "completed", "", "$0.25"),
        ("m", "completed", "2/2, 1 failed", ""),
        ("z", "failed", "", ""),
    ]
    assert "<p>2 of 3 steps done, " in page
    assert "&lt;b&gt; ```` **why**\n</code></pre>" in page
    assert "1 item failed permanently: rerail dlq list r" in page
    assert "<p>Next: rerail resume r</p>" in page
    assert "<a" not in page
    assert page.count("<strong>") == 1  # the name of the failed step


def test_a_paused_and_an_interrupted_run_are_said_to_be_that(job: Project) -> None:
    job.pipeline("steps: [{id: ok, approve: 'sure *now*?'}]")
    job.rerail("run", "pipeline.yaml", "--id", "r", check=5)

    assert outputs(read(job, "GITHUB_OUTPUT"))["status"] == "paused"
    assert "Next: rerail approve r ok" in html(read(job, "GITHUB_STEP_SUMMARY"))


def test_a_run_inside_a_step_of_another_tells_the_job_nothing(job: Project) -> None:
    job.pipeline("steps: [{id: inner, run: 'true'}]", "inner.yaml")
    job.pipeline("steps: [{id: outer, run: 'python3 -m rerail run inner.yaml --id i --store \"$PWD/.inner\"'}]")
    job.env["PATH"] = f"{Path(__import__('sys').executable).parent}:{job.env['PATH']}"
    job.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert outputs(read(job, "GITHUB_OUTPUT"))["run-id"] == "r"
    assert read(job, "GITHUB_OUTPUT").count("run-id<<") == 1


def test_a_secret_in_an_output_is_masked(job: Project) -> None:
    job.env["TOKEN"] = "hush-9f3a1c"
    job.pipeline(
        "secrets: [TOKEN]\noutputs: {said: '${{ env.TOKEN }}', part: '${{ env.TOKEN[:5] | upper }}'}\nsteps: [{id: a, run: 'true'}]"
    )
    job.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    found = outputs(read(job, "GITHUB_OUTPUT"))
    assert (found["said"], found["part"]) == ("***", "***")
    assert "HUSH" not in read(job, "GITHUB_STEP_SUMMARY")


def test_files_that_cannot_be_written_are_a_line_and_no_failure(job: Project) -> None:
    job.env["GITHUB_OUTPUT"] = str(job.root / "nowhere" / "output")
    (job.root / "ok").touch()
    done = job.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert "the job was not told of run r" in done.stderr


def test_the_summary_of_a_large_run_fits_and_says_what_is_left_out(job: Project) -> None:
    steps = "".join(f"  - {{id: s{number}, needs: [], run: 'true'}}\n" for number in range(600))
    job.pipeline("steps:\n" + steps)
    job.rerail("run", "pipeline.yaml", "--id", "r", "-q", check=0)
    page = read(job, "GITHUB_STEP_SUMMARY")

    assert page.count("| s") == job_report.MAX_ROWS
    assert "… and 100 more steps." in page
    Path(job.env["GITHUB_STEP_SUMMARY"]).write_text("x" * (job_report.MAX_SUMMARY - 3000))
    job.rerail("resume", "r", "-q", check=0)
    again = read(job, "GITHUB_STEP_SUMMARY")
    assert len(again.encode()) <= job_report.MAX_SUMMARY
    assert again.endswith("GitHub shows 1 MiB of a summary.\n")


def test_pieces_are_left_out_whole() -> None:
    assert fitting(["a" * 10, "b" * 10], 1000) == "a" * 10 + "b" * 10
    assert fitting(["a" * 50, "b" * 50], 150).startswith("a" * 50 + "\n\n… the rest")
    assert fitting(["a"], 10) == ""


@pytest.mark.parametrize("text", ["", "plain", "`", "```", "a|b", "<script>", "&amp;", "# h", "1. x", "- x", "a\\b", "µ"])
def test_any_text_survives_as_text(text: str) -> None:
    import html as page

    assert page.unescape(re.sub("<[^>]*>", "", html(f"x{markdown(text)}"))).strip() == f"x{text}"
    assert page.unescape(re.sub("<[^>]*>", "", html(fenced([text])))).strip("\n") == text


def test_an_output_that_is_too_large_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    text = output_lines("r", "completed", {"big": "x" * (job_report.MAX_OUTPUT + 1), "small": "y"})

    assert set(outputs(text)) == {"run-id", "status", "small"}
    assert len({line.partition("<<")[2] for line in text.splitlines() if "<<" in line}) == 3  # none can be foreseen
    assert "the output big is too large" in capfd.readouterr().err


def test_a_step_that_writes_to_the_files_of_the_job_too_is_not_in_the_way(job: Project) -> None:
    job.pipeline("steps: [{id: a, run: 'printf mine=1 >> $GITHUB_OUTPUT; printf said >> $GITHUB_STEP_SUMMARY'}]")
    job.rerail("run", "pipeline.yaml", "--id", "r", check=0)

    assert outputs(read(job, "GITHUB_OUTPUT")) == {"mine": "1", "run-id": "r", "status": "completed", "outputs": "{}"}
    assert read(job, "GITHUB_STEP_SUMMARY").startswith("said\n###")
