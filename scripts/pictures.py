"""Draws docs/pictures/*.svg: real runs in a real pseudo-terminal, as the screen was at a moment worth seeing.

.venv/bin/python scripts/pictures.py
"""

from __future__ import annotations

import io
import itertools
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.cli.screen import Screen  # noqa: E402 - the tests' terminal is the one we draw

PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 92, 24
SIZES = [(80, 24), (120, 40), (200, 50)]  # of a small terminal, of a usual one, of a whole screen
PIPELINE = """\
name: build-loop
steps:
  - {id: scout, run: 'sleep 0.4; echo "{\\"cost_usd\\": 0.42}" >> $RERAIL_METRICS'}
  - {id: plan, run: 'sleep 0.6; echo "{\\"cost_usd\\": 1.10}" >> $RERAIL_METRICS'}
  - {id: tests, needs: [plan], retry: {attempts: 3, delay: 0.1}, run: 'sleep 0.5; test $RERAIL_ATTEMPT = 2; echo 41 tests written; sleep 2'}
  - id: build
    needs: [plan]
    run: |
      for part in 1 2 3 4 5 6 7 8; do
        echo "compiling module $part of 8"
        echo "{\\"done\\": $part, \\"total\\": 8}" >> $RERAIL_PROGRESS
        sleep 0.3
      done
  - {id: review, needs: [tests, build], run: 'echo "2 findings in src/theme.css" >&2; test -e fixed'}
  - {id: ship, run: 'true'}
"""


def svg(screen: Screen, title: str) -> str:
    """The screen, colours and all."""
    width = screen.screen.columns
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    last = max((row for row in range(screen.screen.lines) if screen.screen.display[row].strip()), default=0)
    for row in range(last + 1):
        line = Text()
        cells = [screen.screen.buffer[row][column] for column in range(width)]
        for style, same in itertools.groupby(cells, key=_style):
            line.append("".join(cell.data for cell in same), style=style)
        line.rstrip()
        console.print(line, highlight=False)
    # Without fonts from elsewhere: whoever looks at a picture tells nobody.
    return re.sub(r"@font-face\s*{.*?}", "", console.export_svg(title=title), flags=re.DOTALL)


def _style(cell: Any) -> str:
    colour = {"default": "", "brown": "yellow"}.get(cell.fg, cell.fg)
    return " ".join(filter(None, ("bold" if cell.bold else "", colour)))


def draw(columns: int, lines: int, ending: str) -> None:
    """Run, fail and resume a pipeline on a screen of this size, and draw what stands there."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "pipeline.yaml").write_text(PIPELINE, encoding="utf-8")
        env = {**os.environ, "HOME": place}
        run = Screen(root, env, "run", "pipeline.yaml", "--id", "k7f3-build-loop", columns=columns, lines=lines)
        run.until(lambda text: "6/8" in text and "41 tests" in text, "the middle of the run")
        save(run, "rerail run pipeline.yaml", f"run{ending}")
        run.end()
        save(run, "rerail run pipeline.yaml", f"failure{ending}")
        if ending:
            for command in ("list", "show"):
                shown = Screen(root, env, command, columns=columns, lines=lines)
                shown.end()
                save(shown, f"rerail {command}", f"{command}{ending}")
        (root / "fixed").touch()
        resumed = Screen(root, env, "resume", columns=columns, lines=max(lines, 30))
        resumed.end()
        save(resumed, "rerail resume", f"resume{ending}")


def save(screen: Screen, title: str, name: str) -> None:
    drawn = re.sub(re.escape(tempfile.gettempdir()) + r"/\w+", "~/project", svg(screen, title))
    (PICTURES / f"{name}.svg").write_text(drawn, encoding="utf-8")


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    draw(WIDTH, HEIGHT, "")
    for columns, lines in SIZES:
        draw(columns, lines, f"-{columns}x{lines}")


if __name__ == "__main__":
    main()
