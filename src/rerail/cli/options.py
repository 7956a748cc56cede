"""Options and look-ups that several commands share."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable
from typing import Any

import click

from rerail.core.money import MAX_COST
from rerail.core.params import Repeated
from rerail.core.unit_id import UnitId
from rerail.errors import RerailError, RunNotFound, UsageError
from rerail.ports import Store
from rerail.stores.locate import locate

Decorator = Callable[[Any], Any]


class Dollars(click.FloatRange):
    """Option type for an amount of money; not NaN, which is in every range."""

    def __init__(self) -> None:
        super().__init__(min=0, max=MAX_COST, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        amount = super().convert(value, param, ctx)
        return self.fail(f"{value} is not an amount.", param, ctx) if math.isnan(amount) else amount


def store_option() -> Decorator:
    return click.option("--store", "store_url", metavar="URL", help="Store to use instead of the nearest .rerail.")


def json_option(what: str) -> Decorator:
    return click.option("--json", "as_json", is_flag=True, help=what)


def volume_options(command: Any) -> Any:
    command = click.option("-q", "--quiet", is_flag=True, help="Only show errors.")(command)
    return click.option("-v", "--verbose", is_flag=True, help="Show more detail.")(command)


def pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse the NAME=VALUE values of a repeatable option."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {text!r}: not NAME=VALUE", hint="rerail run --help")
        pairs[key] = value
    return pairs


DEFAULT_PIPELINES = ("pipeline.yaml", "rerail.yaml")


def default_pipeline() -> str:
    """Return the pipeline file of the current directory; raise UsageError if there is none, or if there are two."""
    found = [name for name in DEFAULT_PIPELINES if os.path.isfile(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"both {' and '.join(found)} are here: name the one to run", hint=f"rerail run {DEFAULT_PIPELINES[0]}"
        )
    raise UsageError(
        f"no pipeline file named, and there is no {' or '.join(DEFAULT_PIPELINES)} here",
        hint="rerail init, or rerail run FILE",
    )


def param_values(texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse the values of `-p`: one that is repeated has several."""
    given: dict[str, Any] = {}
    for text in texts:
        ((name, value),) = pairs((text,), "-p").items()
        given[name] = Repeated([*_values(given[name]), value]) if name in given else value
    return given


def _values(given: str | Repeated) -> Repeated:
    return given if isinstance(given, Repeated) else Repeated([given])


def run_argument(*, required: bool = True) -> Decorator:
    metavar = "RUN" if required else "[RUN]"
    return click.argument("run_name", metavar=metavar, required=required, shell_complete=complete_run)


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Return the runs whose id begins with `incomplete`, for the shell; never an error."""
    from rerail.app.runs import newest_first  # only to complete or find a name

    try:
        found = [*newest_first(open_store(ctx.params.get("store_url"))), "last"]
    except Exception:  # noqa: BLE001 - a shell that completes must not be shown errors
        return []
    return [run for run in found if run.startswith(incomplete)]


def _first_argument(ctx: click.Context, name: str) -> str | None:
    """Return the first argument, also where an option without its value has kept click from reading it."""
    return ctx.params.get(name) or (ctx.args[0] if ctx.args else None)


def complete_step(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Return the steps of the run or pipeline on the command line, for the shell; never an error."""
    from rerail import api  # planning and loading: not for all of this command

    try:
        if "pipeline" in ctx.params:
            return [
                step.id
                for step in api.load(_first_argument(ctx, "pipeline") or default_pipeline())[0].steps
                if step.id.startswith(incomplete)
            ]
        store = open_store(ctx.params.get("store_url"))
        run_id = find_run_or_newest(store, _first_argument(ctx, "run_name"))
        steps = [record.id for record in api.checkpoint(store, store.read(run_id)).steps]
    except Exception:  # noqa: BLE001 - a shell that completes must not be shown errors
        return []
    return [step for step in steps if step.startswith(incomplete)]


def complete_param(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Return the params of the run or pipeline on the command line, for the shell; never an error."""
    from rerail import api  # planning and loading: not for all of this command

    try:
        if "pipeline" in ctx.params:
            names = list(api.load(_first_argument(ctx, "pipeline") or default_pipeline())[0].params)
        else:
            store = open_store(ctx.params.get("store_url"))
            header = store.header(find_run_or_newest(store, _first_argument(ctx, "run_name")))
            names = list(header.params) if header else []
    except Exception:  # noqa: BLE001 - a shell that completes must not be shown errors
        return []
    return [f"{name}=" for name in names if name.startswith(incomplete)]


opened: list[str] = []  # the roots of the stores that this command opened


def open_store(url: str | None, pipeline_path: str | None = None) -> Store:
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current directory is gone", hint="cd to a directory that exists") from None
    store = locate(url, cwd, pipeline_path)
    if store.root:
        opened.append(store.root)
    return store


def store_flag(store: Store) -> str:
    """Return the `--store` option that a later command needs to find this store from here: mostly ''."""
    try:
        found = locate(None, os.getcwd())
    except (OSError, RerailError):  # the current directory is gone, or the store found from here is another user's
        return f" --store {shlex.quote(store.url)}"
    same = os.path.realpath(found.root) == os.path.realpath(store.root) if store.root else found.url == store.url
    return "" if same else f" --store {shlex.quote(store.url)}"


def find_run(store: Store, wanted: str) -> str:
    """Resolve an id, a unique prefix, or `last` to a run; raise RunNotFound with near matches."""
    runs = store.runs()
    if wanted in runs:
        return wanted
    if wanted == "last" and runs:
        from rerail.app.runs import newest_first  # only to complete or find a name

        return newest_first(store)[0]
    matching = [run for run in runs if run.startswith(wanted)] if wanted else []
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise RunNotFound(
            f"{wanted!r} is ambiguous: it matches {len(matching)} runs ({', '.join(sorted(matching)[:5])})",
            hint="rerail list",
        )
    import difflib

    if os.path.isfile(wanted) and wanted.endswith((".yaml", ".yml")):
        file = shlex.quote(wanted)
        raise UsageError(
            f"{wanted} is a pipeline file, not a run", hint=f"rerail run {file} --resume, or rerail resume without it"
        )
    close = difflib.get_close_matches(wanted, runs, n=3, cutoff=0.5)
    near = f"; did you mean {' or '.join(close)}?" if close else ""
    raise RunNotFound(f"no run {wanted!r} in {store.url}{near}", hint="rerail list")


def find_run_or_newest(store: Store, wanted: str | None) -> str:
    """Resolve the RUN of a command that only reads; without one, return the newest run."""
    if wanted is not None:
        return find_run(store, wanted)
    from rerail.app.runs import newest_first  # only to complete or find a name

    runs = newest_first(store)
    if not runs:
        raise RunNotFound(f"no runs in {store.url}", hint="rerail run PIPELINE")
    return runs[0]


def find_run_and_step(store: Store, wanted: str | None, *rest: str | None) -> tuple[str, tuple[str | None, ...]]:
    """Resolve RUN STEP …, where RUN may be left out: a word that names no run may name a step of the newest one."""
    if wanted is None:
        return find_run_or_newest(store, None), rest
    try:
        return find_run(store, wanted), rest
    except RunNotFound:
        if rest[-1] is not None or not store.runs():
            raise
        newest = find_run_or_newest(store, None)
        if UnitId.parse(wanted).step not in _steps_of(store, newest):
            raise
        return newest, (wanted, *rest[:-1])


def _steps_of(store: Store, run_id: str) -> set[str]:
    """Return the steps of a run at any depth."""
    from rerail import api  # planning and loading: only where a word may be a step

    recording = store.read(run_id)
    return {step for step, _ in recording.state.units} | {step.id for step in api.checkpoint(store, recording).steps}
