"""Pipelines as text, and what became of them: what several test modules share."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from typing import Any

from tests.conftest import Project


def step(name: str, script: str, **options: str) -> str:
    lines = [f"  - id: {name}", *(f"    {key}: {value}" for key, value in options.items()), "    run: |"]
    return "\n".join([*lines, *(f"      {line}" for line in script.splitlines())]) + "\n"


def pipeline(*steps: str, top: str = "") -> str:
    return f"{top}\nsteps:\n" + "".join(steps)


def note(more: str = "") -> str:
    return f'echo "$RERAIL_STEP" >> "$LEDGER"\n{more}'


def ledger(project: Project) -> list[str]:
    return project.ledger_file.read_text(encoding="utf-8").splitlines()


def results(project: Project, step: str = "m", run: str = "last") -> list[dict[str, Any]]:
    state = project.json("show", run)
    found = next(one for one in state["steps"] if one["id"] == step and one.get("item") is None)
    path = project.root / found["outputs"]["results_file"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if "results" in found["outputs"]:
        assert found["outputs"]["results"] == lines
    return lines


def keys(project: Project) -> list[str]:
    return [result["key"] for result in results(project)]


def resumed_without(project: Project, *lost: str) -> list[str]:
    """Run until the gate at the end, lose files, open the gate, resume; what ran then."""
    project.rerail("run", "pipeline.yaml", "--id", "r", check=1)
    for name in lost:
        (project.root / name).unlink()
    (project.root / "ok").touch()
    project.ledger_file.write_text("")
    project.rerail("resume", "r", check=0)
    project.rerail("verify", "r", check=0)
    return ledger(project)


def _no_privileges() -> None:
    """In the child: root without the right to overrule permissions, from the next exec on."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def as_somebody(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run rerail as somebody whom permissions hold for."""
    prepare = _no_privileges if os.geteuid() == 0 else None
    return project.rerail(*arguments, preexec_fn=prepare)


def dollars(project: Project, run_id: str = "r") -> float:
    return float(project.json("cost", run_id)["total"]["cost_usd"])
