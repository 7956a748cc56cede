"""Events as text for people."""

from __future__ import annotations

from rerail.cli.render.units import counted, dollars, moment, seconds
from rerail.core import events as ev
from rerail.core.money import COST
from rerail.text import one_line


def sentence(event: ev.Event) -> str:
    """Describe an event in one line."""
    if isinstance(event, ev.UnitEvent):
        return _unit_sentence(event)
    match event:
        case ev.RunStarted(owner=owner):
            return f"run started by process {owner.pid} on {owner.host}"
        case ev.RunResumed(owner=owner, notices=notices, saved_seconds=saved, saved_usd=cost):
            noticed = "".join(f"; {notice}" for notice in notices)
            kept = f", saving {seconds(saved)}{f' and {dollars(cost)}' if cost else ''}" if saved or cost else ""
            return f"run resumed by process {owner.pid} on {owner.host}{kept}{noticed}"
        case ev.RunRepaired(reason=reason, evidence=evidence):
            return f"run repaired: {reason}; evidence kept in {evidence}"
        case ev.RunInterrupted(reason=reason):
            return f"run interrupted: {reason}"
        case ev.RunPaused(reason=reason, cause=cause, until=until):
            why = f" ({cause})" if cause else ""
            return f"run paused{why}{f' until {moment(until)}' if until else ''}: {reason}"
        case ev.RunFinished(status=status, dead_letters=dead):
            return f"run {status}" + (f", {dead} in the dead letter queue" if dead else "")


def _unit_sentence(event: ev.UnitEvent) -> str:
    unit = one_line(str(event.unit), 200)
    match event:
        case ev.StepStarted(attempt=attempt):
            return f"started      {unit}" + (f" (attempt {attempt})" if attempt > 1 else "")
        case ev.StepCompleted(duration=duration, metrics=metrics, left=left):
            cost = f"  {dollars(metrics[COST])}" if COST in metrics else ""
            return f"completed    {unit}  {seconds(duration)}{cost}{_ended(left)}"
        case ev.StepFailed(error=error, retry_in=retry_in, allowed=allowed, why=why, refused=refused):
            again = why or (f"retry in {seconds(retry_in)}" if retry_in is not None else "")
            again = again.removesuffix(f": {error.message.partition(chr(10))[0]}")
            after = (
                _cost(event) + _ended(event.left) + (f"; {again}" if again else " (allowed to fail)" if allowed else "")
            )
            return f"{'refused' if refused else 'failed':<12} {unit}: {error.message}{after}"
        case ev.StepProgressed():
            return _progressed(event, unit)
        case ev.StepInterrupted(reason=reason, attempt=attempt):
            cause = "a crash" if reason == "crash" else reason
            return f"interrupted  {unit}: attempt {attempt}, by {cause}{_cost(event)}"
        case ev.StepSkipped(reason=reason):
            return f"skipped      {unit}: {reason}"
        case ev.StepInvalidated(reason=reason, quarantined=quarantined):
            return f"invalidated  {unit}: {reason}{_quarantined(quarantined)}"
        case ev.ArtifactsRestored(found=found, quarantined=quarantined):
            what = ", ".join(f"{path} ({condition})" for path, condition in found.items())
            return f"restored     {unit}: {what}{_quarantined(quarantined)}"
        case ev.ArtifactsAccepted(was=was, by=by):
            return f"accepted     {unit}: {', '.join(was)} as changed by hand, by {by}"
        case ev.StepInherited(run=run, skipped=skipped):
            return f"inherited    {unit} from run {run}" + (f": skipped, {skipped}" if skipped else "")
        case ev.ApprovalGiven(approved=approved, by=by, reason=reason):
            why = f": {one_line(reason, 500)}" if reason else ""
            return f"{'approved' if approved else 'rejected':<12} {unit}, by {by}{why}"
        case ev.StepMarked(status=status, by=by):
            return f"marked       {unit} as {status} by {by}"
        case ev.ItemsListed():
            return _listed(event, unit)
        case ev.ItemDropped(by=by):
            return f"dropped      {unit} from the dead letter queue, by {by}"
        case ev.ItemEdited(by=by):
            return f"edited       {unit} in the dead letter queue, by {by}"


def _ended(left: tuple[str, ...]) -> str:
    """Describe the processes that an attempt left running, and that were ended with it."""
    if not left:
        return ""
    shown = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
    return f"; ended {len(left)} process{'' if len(left) == 1 else 'es'} that it left running: {shown}"


def _cost(event: ev.StepFailed | ev.StepInterrupted) -> str:
    return f", {dollars(event.metrics[COST])} spent" if event.metrics.get(COST) else ""


def _progressed(event: ev.StepProgressed, unit: str) -> str:
    far = "" if event.done is None else f", {event.done:g}" + (f" of {event.total:g}" if event.total else "")
    cost = f", {dollars(event.metrics[COST])}" if COST in event.metrics else ""
    return f"progress     {unit}: {seconds(event.elapsed)}{far}{cost}"


def _listed(event: ev.ItemsListed, unit: str) -> str:
    if event.is_loop:
        return f"looping      {unit}: up to {counted(event.total, 'iteration')}"
    if not event.total and not event.digest:
        return f"entered      {unit}"
    gone = f"; no longer in the list: {', '.join(event.gone[:5])}" if event.gone else ""
    part = f" ({event.first + 1} to {event.first + len(event.keys)})" if len(event.keys) < event.total else ""
    return f"expanded     {unit}: {counted(event.total, 'item')}{part}{gone}"


def _quarantined(quarantined: dict[str, str]) -> str:
    kept = ", ".join(f"{path} moved to {where}" for path, where in quarantined.items())
    return f"; {kept}" if kept else ""
