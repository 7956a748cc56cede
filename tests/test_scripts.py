"""Why the system could not start a script: asked of real files, and compared with what the system says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rerail.scripts import script_problem


@pytest.mark.privileges
@pytest.mark.parametrize(
    ("content", "mode", "words", "fix"),
    [
        (b"#!/bin/sh\necho\n", 0o755, "", ""),
        (b"echo\n", 0o755, "", ""),
        (b"#!/usr/bin/env sh\n", 0o755, "", ""),
        (b"#!/usr/bin/env -S A=1 sh -e\n", 0o755, "", ""),
        (b"#!/bin/sh\necho\n", 0o644, "x.sh is not executable", "chmod +x x.sh"),
        (b"#!/bin/sh\r\necho\r\n", 0o755, "x.sh has Windows line endings", "perl -pi -e"),
        (b"#!/no/such/sh\n", 0o755, "the interpreter /no/such/sh of x.sh does not exist", "install it"),
        (b"#!/usr/bin/env nosuchprogram\n", 0o755, "the interpreter nosuchprogram of x.sh is not on PATH", "install"),
        (b"#!\n", 0o755, "x.sh names no interpreter after #!", "#!/bin/sh"),
        (None, 0, "x.sh does not exist", ""),
    ],
)
def test_the_reason_is_found(tmp_path: Path, content: bytes | None, mode: int, words: str, fix: str) -> None:
    path = tmp_path / "x.sh"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    found = script_problem(str(path), "x.sh")

    assert (found is None) == (words == "")
    if found is not None:
        assert words in found[0]
        assert fix in found[1]
    if content is not None and content.startswith(b"#!/"):
        assert (subprocess.call(["sh", "-c", str(path)], stderr=subprocess.DEVNULL) in (126, 127)) == (found is not None)


def test_a_directory_is_no_script(tmp_path: Path) -> None:
    assert script_problem(str(tmp_path), "d") == ("d is a directory", "")
