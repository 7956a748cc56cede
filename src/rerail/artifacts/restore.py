"""Restore of the artifacts that a plan wants; files in the way or broken ones are quarantined, never lost."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import msgspec

from rerail.artifacts.audit import declared_of
from rerail.artifacts.manifest import read_manifest
from rerail.artifacts.paths import PathNotAllowed, ProjectPaths, stamp_of, to_path
from rerail.artifacts.reading import ChangedWhileRead, ReadRequest, read
from rerail.artifacts.seal import joint_stamp, other_stamps
from rerail.core.audit import Audit, Flaw
from rerail.core.events import ArtifactRecord
from rerail.core.masking import Mask
from rerail.core.model import Pipeline, Step
from rerail.core.plan import Decision, Plan
from rerail.core.planner import step_at, step_index
from rerail.core.state import RunState
from rerail.core.unit_id import UnitId
from rerail.durable import copies
from rerail.errors import ArtifactUnreadable
from rerail.ports import ContentStore, RunFiles
from rerail.walker import is_pattern


class Restored(msgspec.Struct, kw_only=True):
    """Result of a restore for one step."""

    unit: UnitId
    restored: tuple[Flaw, ...] = ()
    quarantined: dict[str, str] = {}  # path → where it is now, as the store names it
    artifacts: tuple[ArtifactRecord, ...] = ()


class Restorer:
    """Restorer of the flaws in a plan."""

    def __init__(
        self, place: ProjectPaths, content: ContentStore, files: RunFiles, run_id: str, mask: Mask | None = None
    ) -> None:
        self._place = place
        self._content = content
        self._files = files
        self._run_id = run_id
        self._mask = mask
        self._modes: dict[str, int] = {}  # of restored directories
        self.failed: dict[str, str] = {}  # paths that could not be restored after all, and why

    def restore(self, plan: Plan, pipeline: Pipeline, state: RunState) -> list[Restored]:
        """Restore and quarantine; paths that could not be restored are in `failed`: the plan has to be made again."""
        index = step_index(pipeline)
        return [
            self.restore_step(decision, state.unit(decision.unit).artifacts, step)
            for decision in plan.everything
            if decision.flaws and decision.decision != "in-doubt" and (step := step_at(index, decision.unit)) is not None
        ]

    def restore_step(self, decision: Decision, artifacts: Sequence[ArtifactRecord], step: Step) -> Restored:
        """Restore or quarantine for one step."""
        done = Restored(unit=decision.unit, quarantined={})
        self._modes = {}
        for flaw in {flaw.path: flaw for flaw in decision.flaws}.values():  # two artifacts of a step may include it
            record = next((one for one in artifacts if one.path == flaw.artifact), None)
            declared = declared_of(step, record) if record is not None else None
            self._restore_flaw(flaw, decision, done, external=declared is not None and declared.external)
        for path, mode in sorted(self._modes.items(), reverse=True):  # now that they are complete
            with contextlib.suppress(OSError):
                copies.set_mode(path, mode)
        if decision.restores:
            done.restored = tuple(flaw for flaw in decision.flaws if flaw.path not in self.failed)
        if done.restored:
            done.artifacts = tuple(self._stamped(record) for record in artifacts)
        return done

    def _restore_flaw(self, flaw: Flaw, decision: Decision, done: Restored, *, external: bool) -> None:
        """Clear one path, and restore its content if that is wanted."""
        full = os.path.normpath(os.path.join(self._place.work_dir, to_path(flaw.path)))
        try:
            blocking = self._blocking(full, self._top(flaw))
            if blocking:
                name = self._place.name(blocking)
                done.quarantined[name] = self._quarantine(name, self._place.real(blocking, external=external))
            # Checked, and used from here on: a link swapped in after this is not followed, but an error.
            real = self._place.real(to_path(flaw.path), external=external)
            directory = os.path.isdir(real) and not os.path.islink(real)
            if os.path.lexists(real) and not (flaw.entry.kind == "dir" and directory):
                done.quarantined[flaw.path] = self._quarantine(flaw.path, real)
            if decision.restores:
                self._restore(flaw, real)
        except PathNotAllowed as error:
            if decision.restores:  # if it runs again instead, its own artifact will be rejected with the same message
                self.failed[flaw.path] = str(error)
        except (OSError, ValueError, ChangedWhileRead) as error:
            if not decision.restores:  # it cannot even be moved: the next step would destroy it
                raise ArtifactUnreadable(
                    f"cannot quarantine {full}: {error}; nothing was started", hint="move it, then run it again"
                ) from error
            self.failed[flaw.path] = f"cannot be restored: {error}"

    def _quarantine(self, name: str, real: str) -> str:
        """Move the file at a real path into quarantine; return its new place. Raise ValueError if it holds a secret."""
        if self._mask and _holds_secret(real, self._mask):
            raise ValueError("it holds a secret, and the state directory never does")
        return self._files.quarantine(real, to_path(name))

    def _top(self, flaw: Flaw) -> str:
        """Return the directory that was sealed without a link in it; '' if it was no directory."""
        if flaw.artifact == flaw.path or is_pattern(flaw.artifact):
            return ""
        return os.path.normpath(os.path.join(self._place.work_dir, to_path(flaw.artifact)))

    def _blocking(self, full: str, top: str) -> str:
        """Return the file that stands where a directory should be, above everything below; '' if there is none."""
        blocking = ""
        parent = os.path.dirname(full)
        while parent != os.path.dirname(parent):
            linked = bool(top) and (parent == top or parent.startswith(top + "/")) and os.path.islink(parent)
            if os.path.lexists(parent) and (linked or not os.path.isdir(parent)):
                blocking = parent  # files found below it are behind it, perhaps outside the project
            parent = os.path.dirname(parent)
        return blocking

    def _restore(self, flaw: Flaw, real: str) -> None:
        entry = flaw.entry
        if entry.kind == "dir":
            copies.place_dir(real)
            if entry.mode:
                self._modes[real] = entry.mode
        elif entry.kind == "link":
            copies.place_link(real, to_path(entry.target))
        else:
            fd = self._content.open(entry.sha256)
            try:
                copies.place_copy(fd, real, entry.mode, entry.sha256, self._run_id)
            finally:
                os.close(fd)

    def _stamped(self, record: ArtifactRecord) -> ArtifactRecord:
        """Return the record with the stamp of the present files."""
        with contextlib.suppress(OSError):
            if record.kind == "file":
                stamp = stamp_of(os.lstat(os.path.join(self._place.work_dir, to_path(record.path))))
                return record.with_internal(stamp=stamp)
            entries = read_manifest(self._content, record.internal.manifest) or []
            stamps = [
                (one.path, stamp_of(os.lstat(os.path.join(self._place.work_dir, to_path(one.path)))))
                for one in entries
                if one.kind == "file"
            ]
            return record.with_internal(stamp=joint_stamp([*stamps, *other_stamps(entries)]))
        return record


def _holds_secret(top: str, mask: Mask) -> bool:
    """Return whether a secret is in a name, in the target of a link or in the content of anything at and below a path."""
    stack = [top]
    while stack:
        path = stack.pop()
        if mask.holds(os.path.basename(path)):
            return True
        if os.path.islink(path):
            if mask.holds(os.readlink(path)):
                return True
        elif os.path.isdir(path):
            stack += [os.path.join(path, name) for name in os.listdir(path)]
        elif os.path.isfile(path) and read(path, ReadRequest(mask=mask)).secret:
            return True
    return False


def describe(
    audit: Audit, plan: Plan, done: Sequence[Restored] | None = None, run_dir: str = ""
) -> list[tuple[str, str]]:
    """Describe the findings and restores (without `done`: the planned ones), a line each, as (level, text)."""
    lines: list[tuple[str, str]] = []
    quarantined = {(one.unit, path): where for one in done or () for path, where in one.quarantined.items()}
    restored = {(one.unit, flaw.path) for one in done or () for flaw in one.restored}
    for decision in plan.everything:
        for flaw in {flaw.path: flaw for flaw in decision.flaws}.values():
            told = f"rerunning {decision.unit}"
            if done is None and decision.restores:
                told = "can be restored from the content store"
            elif (decision.unit, flaw.path) in restored:
                told = "restored from the content store"
            where = quarantined.get((decision.unit, flaw.path))
            kept = f"; the file found there is in {os.path.join(run_dir, where)}" if where else ""
            lines.append(("warn", f"{_sentence(flaw, decision.unit)} -- {told}{kept}"))
        lines += [("info", f"{path} intact") for path in audit.intact.get(decision.unit, ())]
    return lines


def _sentence(flaw: Flaw, unit: UnitId) -> str:
    if flaw.condition == "changed":
        return f"{flaw.path} was changed since step {unit} wrote it" + (f" ({flaw.detail})" if flaw.detail else "")
    return flaw.words
