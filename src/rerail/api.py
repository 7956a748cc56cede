"""Programmatic interface: start a run, plan and execute its resume. The command line is its first client.

A new run and a resumed one go through the same `execute` (app/wiring.py); they differ only in the state they start from.
"""

from __future__ import annotations

from rerail.app.execution import Functions, RunOutcome
from rerail.app.planning import ResumePlan, ResumeRequest, checkpoint, load, prepare
from rerail.app.resume import ResumeObserver, resume
from rerail.app.start import StartRequest, new_run_id, start, start_pipeline

__all__ = [
    "Functions",
    "ResumeObserver",
    "ResumePlan",
    "ResumeRequest",
    "RunOutcome",
    "StartRequest",
    "checkpoint",
    "load",
    "new_run_id",
    "prepare",
    "resume",
    "start",
    "start_pipeline",
]
