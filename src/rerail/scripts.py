"""Script files on disk: whether the system could start one, and why not."""

from __future__ import annotations

import os
import shlex
import shutil
import stat

HEAD = 256  # bytes that are read: the system reads no more of a first line


def script_problem(path: str, named: str) -> tuple[str, str] | None:
    """Return why a file cannot be started and the command that helps, or None; `named` is its name in messages."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return (f"{named} is a directory", "") if stat.S_ISDIR(status.st_mode) else None
        if not os.access(path, os.X_OK):
            return f"{named} is not executable", f"chmod +x {shlex.quote(named)}"
        with open(path, "rb") as file:
            first = file.read(HEAD).split(b"\n", 1)
    except FileNotFoundError:
        return f"{named} does not exist", ""
    except (OSError, ValueError):
        return None  # not to be known from here
    if first[0].endswith(b"\r") and len(first) == 2:
        return f"{named} has Windows line endings", f"perl -pi -e 's/\\r$//' {shlex.quote(named)}"
    if not first[0].startswith(b"#!"):
        return None
    return _interpreter_problem(first[0][2:].decode(errors="replace").split(), named)


def _interpreter_problem(words: list[str], named: str) -> tuple[str, str] | None:
    if not words:
        return f"{named} names no interpreter after #!", "begin it with #!/bin/sh, or the interpreter it is for"
    program = words[0]
    if not os.path.exists(program):
        return (
            f"the interpreter {program} of {named} does not exist",
            "install it, or correct the first line of the script",
        )
    if os.path.basename(program) != "env":
        return None
    wanted = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
    if wanted and shutil.which(wanted) is None:
        return f"the interpreter {wanted} of {named} is not on PATH", f"install {wanted}, or correct the first line"
    return None
