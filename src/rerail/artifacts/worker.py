"""File checks of steps in threads, so that a slow one blocks no other step."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Container, Sequence
from datetime import datetime

import msgspec

from rerail.artifacts.audit import Auditor
from rerail.artifacts.paths import ProjectPaths
from rerail.artifacts.reading import Cancelled
from rerail.artifacts.restore import Restored, Restorer
from rerail.artifacts.seal import ArtifactInvalid, SealEnv, examine, seal
from rerail.core.audit import Flaw
from rerail.core.events import ArtifactRecord
from rerail.core.masking import Mask
from rerail.core.model import Artifact, Step
from rerail.core.plan import Decision, DecisionKind
from rerail.core.unit_id import UnitId
from rerail.errors import RerailError
from rerail.ports import ContentStore, FileCheck, RunWriter
from rerail.text import size_text

SLOW = 1.0  # seconds after which it is worth a line
AGAIN = 5.0
_DOING = {
    "artifacts": "sealing its artifacts",
    "inputs": "reading its inputs",
    "confirm": "verifying its artifacts again",
    "clear": "checking its artifacts",
}


# Errors of a disk, independent of the file.
_DISK = frozenset(
    {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EFBIG}
)


# The paths of artifacts and the start of an attempt: why another run may have written them since, or ''.
Contested = Callable[[Sequence[str], datetime], str]


class _Job(msgspec.Struct):
    unit: UnitId
    purpose: str
    began: float
    done: int = 0  # bytes
    told: float = 0.0


class ThreadedArtifactWorker:
    """Artifact worker of one invocation, with a thread for each check."""

    def __init__(
        self,
        place: ProjectPaths,
        content: ContentStore,
        log: RunWriter,
        mask: Mask,
        wake: Callable[[], None],
        contested: Contested = lambda _paths, _since: "",
    ) -> None:
        self._place = place
        self._contested = contested
        self._content = content
        self._log = log
        self._staging = ""
        self._mask = mask
        self._wake = wake
        self._jobs: dict[UnitId, _Job] = {}
        self._finished: queue.SimpleQueue[FileCheck] = queue.SimpleQueue()
        self._cancelled = False
        self._preparing = threading.Lock()
        self._open = contextlib.ExitStack()

    def examine(self, unit: UnitId, declared: Sequence[Artifact]) -> None:
        def look(means: SealEnv) -> FileCheck:
            return FileCheck(unit=unit, purpose="inputs", inputs=examine(declared, means))

        self._start(_Job(unit, "inputs", time.monotonic()), look)

    def seal(self, unit: UnitId, declared: Sequence[Artifact], since: datetime | None = None) -> None:
        def look(means: SealEnv) -> FileCheck:
            self._prepare()
            means.staging = self._staging
            done = seal(declared, means)
            # Checked once all is read: a run that writes there later has not changed the sealed content.
            contested = self._contested([record.path for record in done.records], since) if since else ""
            if contested:
                return FileCheck(unit=unit, purpose="artifacts", problem=contested)
            return FileCheck(unit=unit, purpose="artifacts", artifacts=done.records, warnings=done.warnings)

        self._start(_Job(unit, "artifacts", time.monotonic()), look)

    def reverify(self, unit: UnitId, step: Step, records: Sequence[ArtifactRecord], superseded: Container[str]) -> None:

        def look(means: SealEnv) -> FileCheck:
            flaws = tuple(flaw for flaw in self._flaws(step, records, superseded, means) if not flaw.temporary)
            lost = [flaw for flaw in flaws if not flaw.restorable]
            if lost or not flaws:
                return FileCheck(unit=unit, purpose="confirm", problem=lost[0].words if lost else "")
            done, failed = self._restored("restore", step, records, flaws)
            return FileCheck(
                unit=unit,
                purpose="confirm",
                problem=next((f"{path} {why}" for path, why in failed.items()), ""),
                found={flaw.path: str(flaw.condition) for flaw in done.restored},
                artifacts=done.artifacts,
                quarantined=done.quarantined,
            )

        self._start(_Job(unit, "confirm", time.monotonic()), look)

    def quarantine(self, unit: UnitId, step: Step, records: Sequence[ArtifactRecord], superseded: Container[str]) -> None:

        def look(means: SealEnv) -> FileCheck:
            done, _ = self._restored("rerun", step, records, self._flaws(step, records, superseded, means))
            return FileCheck(unit=unit, purpose="clear", quarantined=done.quarantined)

        self._start(_Job(unit, "clear", time.monotonic()), look)

    def _flaws(
        self, step: Step, records: Sequence[ArtifactRecord], superseded: Container[str], means: SealEnv
    ) -> tuple[Flaw, ...]:
        auditor = Auditor(self._place, self._content, "fast", means.progress)
        found = (flaw for record in records for flaw in auditor.flaws(step, record))
        return tuple(flaw for flaw in found if flaw.path not in superseded)

    def _restored(
        self, verdict: DecisionKind, step: Step, records: Sequence[ArtifactRecord], flaws: tuple[Flaw, ...]
    ) -> tuple[Restored, dict[str, str]]:
        """Restore and quarantine; return that, and the paths that could not be restored."""
        restorer = Restorer(self._place, self._content, self._log, self._log.recording.header.run_id, self._mask)
        decision = Decision(step=step.id, decision=verdict, reason="", flaws=flaws)
        return restorer.restore_step(decision, records, step), restorer.failed

    def finished(self) -> list[FileCheck]:
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                looked = self._finished.get_nowait()
                self._jobs.pop(looked.unit, None)
                found.append(looked)
        return found

    def slow(self, now: float) -> list[str]:
        lines = []
        for job in self._jobs.values():
            if now - job.began > SLOW and now - job.told > AGAIN:
                job.told = now
                lines.append(f"{job.unit}: {_DOING[job.purpose]}, {size_text(job.done)} so far")
        return lines

    def give_up(self) -> None:
        self._cancelled = True

    def close(self) -> None:
        self._cancelled = True
        self._open.close()

    def _prepare(self) -> None:
        """Create the staging directory before the first copy."""
        with self._preparing:
            if not self._staging:
                self._staging = self._open.enter_context(self._log.staging())

    def _is_ours(self, error: OSError) -> bool:
        """Return whether an error is about the disk or our own files rather than those of the step."""
        if error.errno in _DISK or not error.filename:  # without a name: a file that was open already
            return True
        return bool(self._place.state) and str(error.filename).startswith(self._place.state + os.sep)

    def _start(self, job: _Job, look: Callable[[SealEnv], FileCheck]) -> None:
        self._jobs[job.unit] = job

        def progress(count: int) -> None:
            job.done += count
            if self._cancelled:
                raise Cancelled

        def work() -> None:
            means = SealEnv(place=self._place, content=self._content, mask=self._mask, progress=progress)
            purpose = job.purpose
            try:
                looked = look(means)
            except Cancelled:
                looked = FileCheck(unit=job.unit, purpose=purpose, given_up=True)  # type: ignore[arg-type]
            except ArtifactInvalid as error:
                looked = FileCheck(unit=job.unit, purpose=purpose, problem=str(error))  # type: ignore[arg-type]
            except RerailError as error:
                looked = FileCheck(unit=job.unit, purpose=purpose, problem=error.message)  # type: ignore[arg-type]
            except OSError as error:
                what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
                looked = FileCheck(
                    unit=job.unit,
                    purpose=purpose,  # type: ignore[arg-type]
                    problem=f"its artifacts cannot be read or copied: {what}"
                    if purpose == "artifacts"
                    else f"cannot be read: {what}",
                    unkept=self._is_ours(error),
                )
            except Exception as error:  # noqa: BLE001 - the engine waits for an answer in any case
                what = f"{type(error).__name__}: {error}"
                looked = FileCheck(unit=job.unit, purpose=purpose, problem=f"cannot be checked: {what}")  # type: ignore[arg-type]
            self._finished.put(looked)
            self._wake()

        threading.Thread(target=work, daemon=True).start()
