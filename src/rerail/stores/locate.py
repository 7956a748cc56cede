"""Which store is in force: `--store`, `RERAIL_STORE`, or the `.rerail` directory found upward."""

from __future__ import annotations

import os
import re
import shlex

from rerail.errors import UsageError
from rerail.ports import Store
from rerail.registry import find_store
from rerail.stores.directory import DirectoryStore

STATE_DIR = ".rerail"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def locate(url: str | None, cwd: str, pipeline_path: str | None = None) -> Store:
    """Return the store in force. Creates nothing. Raises UsageError for a scheme that no store has."""
    chosen = url or os.environ.get("RERAIL_STORE") or ""
    if chosen:
        scheme = _SCHEME.match(chosen)
        return find_store(scheme[1])(chosen) if scheme else DirectoryStore(chosen)
    found = find_upward(cwd)
    if found is None:
        beside = os.path.dirname(os.path.abspath(pipeline_path)) if pipeline_path else cwd
        found = os.path.join(beside, STATE_DIR)
    check_owner(found)
    return DirectoryStore(found)


def check_owner(path: str) -> None:
    """Raise UsageError for a store that was found, not named, and belongs to another user.

    A run in it has its commands with it: a user who can put a `.rerail` above the current directory, such as into
    /tmp, would have us resume commands of theirs.
    """
    if not hasattr(os, "geteuid"):  # no users that a file belongs to
        return
    try:
        owner = os.stat(path).st_uid
    except OSError:
        return  # there is none, or opening it says why not
    trusted = {os.geteuid()}
    if 0 in trusted and os.environ.get("SUDO_UID", "").isdigit():
        trusted.add(int(os.environ["SUDO_UID"]))
    if owner not in trusted:
        raise UsageError(
            f"the store {path} belongs to another user (uid {owner}), who could decide what runs",
            hint=f"the same command with `--store {shlex.quote(path)}`, if that is meant",
        )


def find_upward(start: str) -> str | None:
    """Return the nearest `.rerail` at or above a directory, not beyond the git root or the home directory."""
    home = os.path.realpath(os.path.expanduser("~"))
    here = os.path.realpath(start)
    while True:
        candidate = os.path.join(here, STATE_DIR)
        if os.path.isdir(candidate):
            return candidate
        parent = os.path.dirname(here)
        if os.path.lexists(os.path.join(here, ".git")) or here in (home, parent):
            return None
        here = parent
