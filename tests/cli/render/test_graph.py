"""The graph of a pipeline or a run: as a drawing, and as Mermaid."""

from __future__ import annotations

from tests.conftest import Project

PIPELINE = """
steps:
  - {id: a, run: 'true'}
  - {id: b, needs: [a], run: 'true'}
  - {id: c, needs: [a], run: 'false'}
  - {id: d, needs: [b, c], run: 'true'}
  - id: polish
    needs: [d]
    loop: {max_iterations: 3, until: 'true'}
    steps: [{id: edit, run: 'true'}, {id: judge, run: 'true'}]
"""


def test_a_file_is_drawn_as_a_tree(project: Project) -> None:
    project.pipeline(PIPELINE)
    assert project.rerail("plan", "pipeline.yaml", "--graph", check=0).stdout.splitlines() == [
        "a",
        "├─ b",
        "└─ c",
        "   └─ d  (also needs b)",
        "      └─ polish (loop, at most 3 times)",
        "            ┊ edit",
        "            ┊ └─ judge",
    ]
    project.env |= {"LC_ALL": "C", "PYTHONUTF8": "0"}
    assert "|- b" in project.rerail("plan", "pipeline.yaml", "--graph", check=0).stdout


def test_a_run_is_drawn_with_its_statuses(project: Project) -> None:
    project.pipeline(PIPELINE)
    project.rerail("run", "--id", "r", check=1)
    drawn = project.rerail("plan", "r", "--graph", check=0).stdout
    assert "├─ ✓ b" in drawn
    assert "└─ ✗ c" in drawn
    chart = project.rerail("plan", "r", "--mermaid", check=0).stdout.splitlines()
    assert chart[:4] == ["flowchart TD", '  s1["a"]:::completed', '  s2["b"]:::completed', '  s3["c"]:::failed']
    assert {"  s1 --> s2", "  s1 --> s3", "  s2 --> s4", "  s3 --> s4", "  s4 --> s5"} <= set(chart)
    assert '  subgraph s5["polish (loop, at most 3 times)"]' in chart
