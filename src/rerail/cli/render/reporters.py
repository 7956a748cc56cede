"""Choice of reporters for a run: live view, lines, CI groups or JSON, by the output stream and the flags."""

from __future__ import annotations

import contextlib
import types

from rerail.cli.options import store_flag
from rerail.cli.render.json_lines import JsonReporter
from rerail.cli.render.lines import LineReporter
from rerail.cli.render.output import HeldOutput, LiveOutput, OutputMode, output_mode
from rerail.cli.render.streams import STDERR, backlog, say, say_raw
from rerail.cli.render.terminal import terminal_of
from rerail.cli.render.units import counted
from rerail.core.model import Pipeline
from rerail.core.state import RunState
from rerail.ports import OutputListener, Reporter, Store


class Reporters:
    """Reporters of one invocation, from before it begins until after it has ended."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        *,
        quiet: bool,
        verbose: bool,
        as_json: bool,
        output: OutputMode | None = None,
    ) -> None:
        look = terminal_of(STDERR)
        self._run_id = run_id
        self._where = where = store_flag(store)
        self._view = None
        self._lines: LineReporter | None = None
        self._held: HeldOutput | None = None
        self._github = None
        self.listener: OutputListener | None = None
        self.reporters: list[Reporter] = [JsonReporter(run_id, where, alone=quiet)] if as_json else []
        mode = output_mode(output, look, quiet=quiet, verbose=verbose, as_json=as_json)
        if look.live and mode == "none" and not (quiet or verbose or as_json):
            from rerail.app.traces import process_tag_in  # only on a terminal
            from rerail.cli.render.live import LiveView
            from rerail.cli.render.probe import AttemptProbe

            self._view = LiveView(run_id, AttemptProbe(store.logs(run_id), lambda: process_tag_in(store, run_id)), look)
            self.reporters.append(self._view)
            return
        if mode == "live":
            self.listener = LiveOutput(run_id, where, look, say_raw, backlog)
        elif mode != "none":
            self.listener = self._held = HeldOutput(run_id, where)
        folded = None
        if look.ci == "github":
            from rerail.cli.render.github import GithubReporter, fold  # only there

            folded = fold
            if not quiet:
                self._github = GithubReporter(run_id, where)
                self.reporters.append(self._github)
        self._lines = LineReporter(
            run_id,
            look,
            quiet=quiet,
            verbose=verbose,
            held=self._held,
            only_failed=mode == "failed",
            folded=folded,
            warns=self._github is None,
            tells_retries=mode == "live",
        )
        self.reporters.insert(len(self.reporters) - (self._github is not None), self._lines)

    def attach(self, pipeline: Pipeline, state: RunState, path: str) -> None:
        """Give the reporters the pipeline, and the state at the start of this invocation."""
        if self._view is not None:
            self._view.attach(pipeline, state)
        if self._lines is not None:
            self._lines.attach(pipeline)
        if self._github is not None:
            self._github.attach(pipeline, path)

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Suspend drawing while something else is on the screen."""
        return self._view.aside() if self._view is not None else contextlib.nullcontext()

    def __enter__(self) -> Reporters:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: types.TracebackType | None) -> None:
        if self._view is not None:
            self._view.close()
        if self._held is not None and self._held.left_out:
            left_out = counted(self._held.left_out, "more step")
            say(f"rerail: the output of {left_out} is not shown here\n  next: rerail logs {self._run_id}{self._where}")
        if self._github is not None:
            self._github.close()
