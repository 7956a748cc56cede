"""Choice of reporters for a run: live view, lines, CI groups or JSON, by the output stream and the flags."""

from __future__ import annotations

import contextlib
import types

from rerail.cli.render.lines import GithubReporter, LineReporter
from rerail.cli.render.streams import STDERR, JsonReporter
from rerail.cli.render.terminal import terminal_of
from rerail.core.model import Pipeline
from rerail.core.state import RunState
from rerail.ports import Reporter, Store


class Reporters:
    """Reporters of one invocation, from before it begins until after it has ended."""

    def __init__(self, store: Store, run_id: str, *, quiet: bool, verbose: bool, as_json: bool) -> None:
        look = terminal_of(STDERR)
        self._github: GithubReporter | None = None
        self._view = None
        self._lines: LineReporter | None = None
        self.reporters: list[Reporter] = [JsonReporter(alone=quiet)] if as_json else []
        if look.live and not (quiet or verbose or as_json):
            from rerail.app.traces import process_tag_in  # only on a terminal
            from rerail.cli.render.live import LiveView
            from rerail.cli.render.probe import AttemptProbe

            self._view = LiveView(run_id, AttemptProbe(store.logs(run_id), lambda: process_tag_in(store, run_id)), look)
            self.reporters.append(self._view)
            return
        self._lines = LineReporter(run_id, look, quiet=quiet, verbose=verbose)
        self.reporters.append(self._lines)
        if look.ci == "github" and not quiet:
            self._github = GithubReporter(store.logs(run_id))
            self.reporters.append(self._github)

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
