"""`rerail watch`: draws the run of another process and leaves it alone."""

from __future__ import annotations

from tests.cli.screen import screen
from tests.conftest import Project, eventually


def test_watch_draws_a_run_of_another_process_and_leaves_it_alone(loop: Project) -> None:
    process = loop.spawn("run", "pipeline.yaml", "--id", "r")
    eventually(lambda: loop.ledger() == ["build"], "build runs")
    watched = screen(loop, "watch", "r")
    watched.until(lambda text: "5/8" in text and "compiling module 5" in text and "✓ scout" in text, "the board")
    watched.type(b"\x03")
    assert "run r is still running" in watched.end()
    second = screen(loop, "watch", "r")
    second.until(lambda text: "5/8" in text, "the board again")
    (loop.root / "go").touch()
    (loop.root / "fixed").touch()
    text = second.end()
    process.communicate()

    assert process.returncode == 0
    assert second.process.returncode == 0
    assert "run r is completed" in text
    assert "✓ ship" in text
