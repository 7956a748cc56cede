"""The state directory is found upward, but not beyond the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerail.stores.locate import locate


@pytest.mark.scenario("J14", "M2")
def test_the_state_directory_is_found_upward_but_not_beyond_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RERAIL_STORE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    inner = tmp_path / "project" / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / ".rerail").mkdir()
    (tmp_path / "project" / ".git").mkdir()

    assert locate(None, str(inner)).root == str(inner / ".rerail")
    assert locate(None, str(inner), str(tmp_path / "project" / "p.yaml")).root == str(tmp_path / "project/.rerail")
    (tmp_path / "project" / ".rerail").mkdir()
    assert locate(None, str(inner)).root == str(tmp_path / "project/.rerail")
    monkeypatch.setenv("RERAIL_STORE", str(tmp_path / "other"))
    assert locate(None, str(inner)).root == str(tmp_path / "other")
    assert locate(f"dir:{tmp_path}/third", str(inner)).root == str(tmp_path / "third")
    with pytest.raises(Exception, match="unknown store `s4`; known: dir, file, memory"):
        locate("s4://bucket", str(inner))
