"""The state of a git work tree, for `commit_required`."""

from __future__ import annotations

import subprocess


def head(directory: str) -> str:
    """Return the commit at HEAD; '' where there is none or no repository."""
    return _git(directory, "rev-parse", "--verify", "--quiet", "HEAD")


def work_tree(directory: str) -> str:
    """Return the git directory, which tells work trees with a HEAD of their own apart; '' without a repository."""
    return _git(directory, "rev-parse", "--absolute-git-dir")


def uncommitted(directory: str, most: int = 10) -> list[str]:
    """Return the paths with uncommitted changes, as git writes them."""
    lines = _git(directory, "status", "--porcelain", "--untracked-files=normal").splitlines()
    return [*lines[:most], f"and {len(lines) - most} more"] if len(lines) > most else lines


def _git(directory: str, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.rstrip("\n") if done.returncode == 0 else ""
