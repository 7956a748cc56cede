"""Ten planted bugs, in ten parts of rerail: the fuzzer has to find at least eight of them (`scripts/fuzz.py --mutants`).

A replacement is looked for in the whole of the source, so that moving code breaks nothing; where it is not found once, the
bug is to be written anew.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Mutant:
    """One bug: a text that occurs once, and what stands there instead."""

    name: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "an edited step is kept",
        'if self._edited(step, unit) and self._options.changes != "keep":',
        'if self._edited(step, unit) and self._options.changes == "refuse":',
    ),
    Mutant(
        "one attempt fewer than the policy says",
        "if facts.failures >= policy.attempts:",
        "if facts.failures + 1 >= policy.attempts:",
    ),
    Mutant(
        "what a killed attempt cost is forgotten",
        "        metrics=seen.metrics if seen else {},\n        models=seen.models if seen else {},\n        elapsed=seen.elapsed if seen else 0.0,\n",
        "        elapsed=seen.elapsed if seen else 0.0,\n",
    ),
    Mutant(
        "nobody ends the steps of a rerail that was killed",
        "processes.kill_tagged(self._mark, self._table.known, pauses=_AGAIN)",
        "pass",
    ),
    Mutant(
        "a failed item counts as skipped",
        "mark = SKIPPED if unit.allowed else FAILED",
        "mark = SKIPPED",
    ),
    Mutant(
        "a loop hands out its first iteration",
        "self.frame_outputs(self._frame_of(done)) if done else {}",
        "self.frame_outputs(self._frame_of(1)) if done else {}",
    ),
    Mutant(
        "secrets in outputs are not masked",
        "masked = mask.struct(event)",
        "masked = event",
    ),
    Mutant(
        "a changed artifact of the same size is believed",
        "return AuditFinding() if self._digests[key] == entry.sha256 else _same_size(entry)",
        "return AuditFinding()",
    ),
    Mutant(
        "a cut-off step that is not idempotent is repeated",
        '    if step.idempotent:\n        return Decision(step=step.id, decision="rerun", reason=how.text',
        '    if step.idempotent or unit.attempts:\n        return Decision(step=step.id, decision="rerun", reason=how.text',
    ),
    Mutant(
        "nothing comes last when a run has failed",
        'if result.status in ("completed", "failed") and (self.spec.pipeline.finally_',
        'if result.status == "completed" and (self.spec.pipeline.finally_',
    ),
)


def plant(mutant: Mutant, directory: Path) -> Path:
    """A copy of the source with the bug in it: a directory for PYTHONPATH."""
    source = directory / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("*.egg-info"))  # with what is compiled
    places = [path for path in source.rglob("*.py") if mutant.old in path.read_text(encoding="utf-8")]
    count = sum(path.read_text(encoding="utf-8").count(mutant.old) for path in places)
    if count != 1:
        raise LookupError(f"{mutant.name}: found {count} times; write the bug anew")
    path = places[0]
    path.write_text(path.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
    Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)
    return source
