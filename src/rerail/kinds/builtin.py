"""The built-in kinds: a shell script, a Python function in a child process, a file, a function of this process."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import msgspec

from rerail import durable
from rerail.core.model import Call, Python, Run, Write
from rerail.ports import Attempt, FunctionWork, Kind, ProcessWork, Work

USER_FILE_MODE = 0o666  # less the umask: a file of a step belongs to the user, it is not state

MAX_BYTES = 100_000  # of one argument or variable; Linux allows 128 KiB

_CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python_child.py")


class Shell:
    """Kind of `run:` steps: bash where there is one, else sh; an error in any command ends the script."""

    def work(self, attempt: Attempt) -> Work:
        assert isinstance(attempt.action, Run)
        script = attempt.action.script
        files: dict[str, bytes] = {}
        env: dict[str, str] = {}
        room = MAX_BYTES * 3  # for all of them: the system bounds their sum too
        for name, value in attempt.values.items():
            size = len(value.encode())
            if size < min(MAX_BYTES, room):
                room -= size
                env[name] = value
            else:
                # Larger than a variable may be: read from a file, the end guarded, as $(…) drops newlines there.
                path = f"{attempt.channel}.{name}"
                files[path] = value.encode()
                script = f"{name}=$(cat {shlex.quote(path)}; printf x); {name}=${{{name}%x}}\n{script}"
        if len(script.encode()) < MAX_BYTES:
            return ProcessWork(argv=(*_shell(), "-c", script), files=files, env=env)
        path = f"{attempt.channel}.script"
        files[path] = script.encode()
        return ProcessWork(argv=(*_shell(), path), files=files, env=env)


@cache
def _shell() -> tuple[str, ...]:
    bash = shutil.which("bash")
    return (bash, "-eo", "pipefail") if bash else (shutil.which("sh") or "/bin/sh", "-e")


class PythonFunction:
    """Kind of `python: module:function` steps: a child process with this interpreter."""

    def work(self, attempt: Attempt) -> Work:
        action = attempt.action
        assert isinstance(action, Python)
        path = f"{attempt.channel}.arguments"
        files = {path: msgspec.json.encode(action.arguments)}
        return ProcessWork(argv=(sys.executable, _CHILD, action.target, path), files=files)


class WriteFile:
    """Kind of `write:` steps: a file written all or nothing, durable."""

    def work(self, attempt: Attempt) -> Work:
        action = attempt.action
        assert isinstance(action, Write)
        path = os.path.join(attempt.cwd, action.path)

        def write() -> None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            writer = attempt.env.get("RERAIL_RUN_DIR", "") + attempt.env.get("RERAIL_STEP_KEY", attempt.log_name)
            mode = int(action.mode, 8) if action.mode else USER_FILE_MODE
            content = action.content.encode()
            durable.replace_file(path, content, mode=mode, ignores_umask=bool(action.mode), writer=writer)

        return FunctionWork(function=write)


class LocalCall:
    """Kind of functions of this process, registered by name."""

    def __init__(self, functions: Mapping[str, Callable[..., dict[str, Any] | None]]) -> None:
        self._functions = functions

    def work(self, attempt: Attempt) -> Work:
        assert isinstance(attempt.action, Call)
        function = self._functions.get(attempt.action.target)
        if function is None:
            raise ValueError(f"no function is registered as {attempt.action.target!r}")
        return FunctionWork(function=function if attempt.item is msgspec.UNSET else partial(function, attempt.item))


ACTIONS: dict[str, type] = {"run": Run, "python": Python, "write": Write}  # those that a kind of a plug-in can do


def builtin_kinds(functions: Mapping[str, Callable[..., dict[str, Any] | None]]) -> dict[type, Kind]:
    """Return every built-in kind, by its action."""
    return {Run: Shell(), Python: PythonFunction(), Write: WriteFile(), Call: LocalCall(functions)}
