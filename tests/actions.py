"""A runner of composite actions: as much of GitHub's as an action of ours needs, by its documentation.

Steps run one after the other with `bash --noprofile --norc -eo pipefail`, in the environment that GitHub documents, with files for
outputs, paths and the summary. Conditions have an implied `success()`. A job that is cancelled sends its running step SIGINT, then
SIGTERM, then kills it, and goes on with the steps that are to run always. The actions of others are directories that are copied:
a cache has a key that is never written twice; it is found by its key, else the newest by the first prefix that any has.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import Project, eventually

_TOKENS = re.compile(r"\s*('(?:[^']|'')*'|&&|\|\||==|!=|!|\(|\)|,|[\w.-]+)")


class Expression:
    """An expression of GitHub's language: contexts, strings, comparisons and the functions about the status."""

    def __init__(self, text: str, names: dict[str, Any], status: str) -> None:
        self._tokens = _TOKENS.findall(text)
        assert "".join(self._tokens) == re.sub(r"\s(?=(?:[^']*'[^']*')*[^']*$)", "", text), text
        self._names = names
        self._status = status
        self.asks_for_status = False

    def value(self) -> Any:
        value = self._either()
        assert not self._tokens, self._tokens
        return value

    def _next(self, *wanted: str) -> str:
        return self._tokens.pop(0) if self._tokens and self._tokens[0] in wanted else ""

    def _either(self) -> Any:
        value = self._both()
        while self._next("||"):
            other = self._both()
            value = value or other
        return value

    def _both(self) -> Any:
        value = self._comparison()
        while self._next("&&"):
            other = self._comparison()
            value = value and other
        return value

    def _comparison(self) -> Any:
        value = self._atom()
        operator = self._next("==", "!=")
        return value if not operator else (value == self._atom()) == (operator == "==")

    def _atom(self) -> Any:
        if self._next("!"):
            return not self._atom()
        if self._next("("):
            value = self._either()
            assert self._next(")")
            return value
        token = self._tokens.pop(0)
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if self._next("("):
            assert self._next(")")
            self.asks_for_status = True
            return {"always": True, "success": self._status == "success", "failure": self._status == "failure",
                    "cancelled": self._status == "cancelled"}[token]  # fmt: skip
        value = self._names
        for name in token.split("."):
            value = value.get(name, "") if isinstance(value, dict) else ""
        return value


def expanded(text: str, names: dict[str, Any], status: str) -> str:
    return re.sub(r"\$\{\{(.*?)\}\}", lambda found: str(Expression(found[1].strip(), names, status).value()), text)


def file_commands(path: Path) -> dict[str, str]:
    """The values of a file such as $GITHUB_OUTPUT."""
    found: dict[str, str] = {}
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if re.match(r"[^=]*<<", line):
            name, _, end = line.partition("<<")
            found[name] = "\n".join(iter(lambda lines=lines: next(lines), end))  # type: ignore[misc]
        elif line:
            name, _, found[name] = line.partition("=")
    return found


class Job:
    """The attempts of a job, each on a fresh machine: of an action, or of the `steps` of a workflow."""

    def __init__(self, root: Path, project: Project, action: Path, steps: list[dict[str, Any]] | None = None) -> None:
        self.root = root  # what outlives the machine: caches, uploads, the summary of all attempts
        self.project = project
        self.action = action
        workflow: dict[str, Any] = {"inputs": {}, "outputs": {}, "runs": {"steps": steps}}
        self.definition: dict[str, Any] = (
            workflow if steps else yaml.safe_load((action / "action.yml").read_text(encoding="utf-8"))
        )
        self.workspace = project.root
        self.attempt = 0
        self.outputs: dict[str, str] = {}
        self.log = ""
        self.steps: dict[str, dict[str, Any]] = {}
        self.env: dict[str, str] = {}

    def run(
        self,
        checkout: Callable[[Path], None],
        cancel_when: Callable[[], bool] | None = None,
        *,
        patient: bool = True,
        **inputs: str,
    ) -> str:
        """Run the action as the next attempt; return `success`, `failure` or `cancelled`."""
        self.attempt += 1
        shutil.rmtree(self.workspace)
        self.workspace.mkdir()
        checkout(self.workspace)
        temp = self.root / f"machine-{self.attempt}"
        temp.mkdir(parents=True)
        self.env = {
            **self.project.env,
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_ACTION_PATH": str(self.action),
            "GITHUB_RUN_ID": "4711",
            "GITHUB_RUN_ATTEMPT": str(self.attempt),
            "GITHUB_JOB": "build",
            "RUNNER_TEMP": str(temp),
            "RUNNER_OS": "Linux",
        }
        github = {"run_id": "4711", "run_attempt": str(self.attempt), "job": "build", "action_path": str(self.action)}
        names: dict[str, Any] = {"github": github, "runner": {"temp": str(temp)}, "strategy": {"job-index": "0"}}
        assert set(inputs) <= {name.replace("-", "_") for name in self.definition["inputs"]}
        names["inputs"] = {
            name: inputs.get(name.replace("-", "_"), expanded(str(declared.get("default", "")), names, ""))
            for name, declared in self.definition["inputs"].items()
        }
        self.steps = names["steps"] = {}
        self.log, status = "", "success"
        for number, declared_step in enumerate(self.definition["runs"]["steps"]):
            condition = Expression(declared_step.get("if", "success()"), names, status)
            wanted = condition.value()
            if not wanted or (not condition.asks_for_status and status != "success"):
                continue
            step = dict(declared_step)
            for part in ("env", "with"):
                step[part] = {key: expanded(str(text), names, status) for key, text in step.get(part, {}).items()}
            step["run"] = expanded(step.get("run", ""), names, status)
            if "uses" in step:
                getattr(self, "_" + re.sub(r"\W", "_", step["uses"].partition("@")[0]))(step["with"])
                continue
            place = expanded(step.get("working-directory", "."), names, status)
            code, cancelled, outputs = self._bash(
                temp, number, step, place, cancel_when if "id" in step else None, patient
            )
            outcome = "cancelled" if cancelled else "success" if code == 0 else "failure"
            if "id" in step:
                self.steps[step["id"]] = {"outputs": outputs, "outcome": outcome, "code": code}
            if cancelled:
                status = "cancelled"
            elif code != 0 and not step.get("continue-on-error"):
                status = "failure" if status == "success" else status
        self.outputs = {
            name: expanded(declared["value"], names, status) for name, declared in self.definition["outputs"].items()
        }
        return status

    def _bash(
        self,
        temp: Path,
        number: int,
        step: dict[str, Any],
        place: str,
        cancel_when: Callable[[], bool] | None,
        patient: bool,
    ) -> tuple[int, bool, dict[str, str]]:
        script = temp / f"step-{number}.sh"
        script.write_text(step["run"], encoding="utf-8")
        files = {f"GITHUB_{name}": temp / f"{name}-{number}" for name in ("OUTPUT", "PATH", "ENV", "STEP_SUMMARY")}
        for path in files.values():
            path.touch()
        assert step.get("shell", "bash") == "bash"
        with (temp / f"log-{number}").open("w+", encoding="utf-8") as log:
            process = subprocess.Popen(
                ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)],
                cwd=self.workspace / place, env={**self.env, **step["env"], **{name: str(path) for name, path in files.items()}},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                if cancel_when is not None:
                    eventually(lambda: cancel_when() or process.poll() is not None, "the time to cancel")
                    self._cancel(process, patient=patient)
                process.wait()
            finally:  # of a test that failed nothing is left
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            log.seek(0)
            self.log += log.read()
        self.env["PATH"] = os.pathsep.join([*files["GITHUB_PATH"].read_text().split(), self.env["PATH"]])
        with (self.root / "summary.md").open("a", encoding="utf-8") as all_attempts:
            all_attempts.write(files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8"))
        return process.returncode, cancel_when is not None, file_commands(files["GITHUB_OUTPUT"])

    @staticmethod
    def _cancel(process: subprocess.Popen[bytes], *, patient: bool) -> None:
        """End a step as a runner does: only the process that it started gets the signals; the last ends all that is left."""
        process.send_signal(signal.SIGINT)
        if patient:
            eventually(
                lambda: process.poll() is not None, "the end of the step"
            )  # in 7.5 s, if the machine is not loaded
            return
        process.send_signal(signal.SIGTERM)
        process.kill()

    # The actions of others

    def _actions_checkout(self, given: dict[str, str]) -> None:
        """The workspace is checked out before the first step."""

    @property
    def _caches(self) -> Path:
        path = self.root / "caches"
        path.mkdir(exist_ok=True)
        return path

    @staticmethod
    def _paths(given: dict[str, str]) -> list[str]:
        return [line.strip() for line in given["path"].splitlines() if line.strip()]

    def _actions_cache_restore(self, given: dict[str, str]) -> None:
        saved = sorted(self._caches.iterdir(), key=lambda path: int(path.name), reverse=True)
        entries = [(path, json.loads((path / "entry.json").read_text())) for path in saved]
        entries = [
            (path, entry) for path, entry in entries if entry["paths"] == self._paths(given)
        ]  # they are its version
        prefixes = [line.strip() for line in given.get("restore-keys", "").splitlines() if line.strip()]
        found = [path for path, entry in entries if entry["key"] == given["key"]]
        for prefix in [given["key"], *prefixes]:
            found += [path for path, entry in entries if entry["key"].startswith(prefix)]
        if found:
            shutil.copytree(found[0] / "files", self.workspace, symlinks=True, dirs_exist_ok=True)

    def _actions_cache_save(self, given: dict[str, str]) -> None:
        assert len(given["key"]) <= 512
        assert "," not in given["key"]
        known = [json.loads((path / "entry.json").read_text())["key"] for path in self._caches.iterdir()]
        there = [path for path in self._paths(given) if (self.workspace / path).exists()]
        if given["key"] in known or not there:
            self.log += "Warning: no cache was saved\n"
            return
        place = self._caches / str(len(known))
        (place / "files").mkdir(parents=True)
        (place / "entry.json").write_text(json.dumps({"key": given["key"], "paths": self._paths(given)}))
        for path in there:
            copied = place / "files" / path
            copied.parent.mkdir(parents=True, exist_ok=True)
            if (self.workspace / path).is_dir():
                shutil.copytree(self.workspace / path, copied, symlinks=True)
            else:
                shutil.copy2(self.workspace / path, copied)

    def _actions_upload_artifact(self, given: dict[str, str]) -> None:
        assert given["include-hidden-files"] == "True", "files in .rerail are hidden, and left out otherwise"
        assert not re.search(r'["<>|*?\r\n\\/:]', given["name"])
        shutil.copytree(self.workspace / given["path"], self.root / "uploads" / given["name"], symlinks=True)
