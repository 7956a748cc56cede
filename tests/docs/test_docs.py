"""Docs that are generated are as generated; the two commands of the README are real."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts/generate_docs.py"), "--check"], check=False)

    assert done.returncode == 0, "run scripts/generate_docs.py"


def test_the_readme_shows_both_commands_and_they_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in ("./demo", "./test"):
        assert command in text
        assert (ROOT / command).stat().st_mode & 0o111


def test_every_variable_that_the_source_names_is_documented() -> None:
    page = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    pattern = re.compile(r"""environ(?:\.get\(|\[)["'](\w+)|["'](RERAIL_[A-Z_]+)["'=]""")
    named = {a or b for path in ROOT.glob("src/**/*.py") for a, b in pattern.findall(path.read_text(encoding="utf-8"))}

    assert {"RERAIL_STORE", "RERAIL_OUTPUT", "SUDO_UID", "NO_COLOR"} <= named
    assert {name for name in named if name != "_RERAIL_COMPLETE" and f"`{name}" not in page} == set()


def test_every_page_is_in_an_index() -> None:
    for section in ("how-to", "reference"):
        text = (ROOT / "docs" / section / "index.md").read_text(encoding="utf-8")
        pages = {page.name for page in (ROOT / "docs" / section).glob("*.md")} - {"index.md"}
        assert {name for name in pages if f"({name})" not in text} == set()


def test_links_between_pages_lead_somewhere() -> None:
    for page in [
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "examples/README.md",
        *ROOT.glob("docs/**/*.md"),
    ]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} → {target}"


def test_every_module_architecture_md_names_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:core|engine|stores|executors|kinds|loaders|cli)/\w+\.py)`", text)

    assert named
    for name in named:
        assert (ROOT / "src/rerail" / name).exists(), name
