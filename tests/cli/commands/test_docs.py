"""`rerail docs`: every page, from a checkout and from an installed package."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.conftest import Project

ROOT = Path(__file__).parent.parent.parent.parent


def test_every_page_is_listed_with_its_title_and_printed_as_it_is(project: Project) -> None:
    listed = project.rerail("docs", check=0).stdout
    pages = [ROOT / "docs/tutorial.md"]
    for section in ("how-to", "reference", "explanation"):
        pages += [page for page in (ROOT / "docs" / section).glob("*.md") if page.stem != "index"]
    for page in pages:
        title = next(line for line in page.read_text().splitlines() if line.startswith("# "))
        assert any(line.split() == [page.stem, *title.split()[1:]] for line in listed.splitlines()), page
        printed = project.rerail("docs", page.stem, check=0).stdout
        assert printed.startswith(title)
        assert page.read_text().endswith(printed)


def test_a_topic_that_does_not_exist_is_refused_with_the_nearest_one(project: Project) -> None:
    assert "rerail docs retry" in project.rerail("docs", "retries", check=2).stderr
    assert "rerail docs" in project.rerail("docs", "../tutorial", check=2).stderr


def test_a_wheel_has_the_pages(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, check=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()

    assert {"rerail/docs/tutorial.md", "rerail/docs/how-to/retry.md", "rerail/docs/reference/pipeline.md"} <= {*names}
