"""Stores, executors and kinds by name: the built-in ones in a table, those of other packages by their entry points.

To add one to rerail, write its line below. A package of its own says in its pyproject.toml, for a store:

    [project.entry-points."rerail.stores"]
    postgresql = "rerail_postgres:open_store"

Entry points are looked up only for a name that is not built in: that takes longer than `rerail list` does, and no
package that happens to be installed can take the place of a built-in one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from rerail.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from rerail.ports import Executor, ExecutorSetup, Kind, Store

Group = Literal["stores", "executors", "kinds"]

BUILTIN: dict[Group, dict[str, str]] = {
    "stores": {  # scheme → a function from the URL to a `Store`
        "dir": "rerail.stores.directory:open_store",
        "file": "rerail.stores.directory:open_store",
        "memory": "rerail.stores.memory:open_store",
    },
    "executors": {  # scheme → a function from an `ExecutorSetup` to an `Executor`
        "local": "rerail.executors.local:open_executor",
    },
    "kinds": {  # name → a function without arguments to a `Kind`
        "shell": "rerail.kinds.builtin:Shell",
        "python": "rerail.kinds.builtin:PythonFunction",
        "write": "rerail.kinds.builtin:WriteFile",
    },
}


def find_store(scheme: str) -> Callable[[str], Store]:
    """Return the function that opens stores with this scheme. Raises UsageError with the schemes there are."""
    found: Callable[[str], Store] = _find("stores", scheme, hint="--store dir:PATH")
    return found


def find_executor(url: str) -> Callable[[ExecutorSetup], Executor]:
    """Return the function that makes the executor a URL names by its scheme. Raises UsageError."""
    found: Callable[[ExecutorSetup], Executor] = _find("executors", url.partition(":")[0], hint='executor="local"')
    return found


def find_kind(name: str) -> Kind:
    """Make the kind with this name. Raises UsageError."""
    made: Kind = _find("kinds", name, hint='kinds={"run": "shell"}')()
    return made


def _find(group: Group, name: str, *, hint: str) -> Any:
    if name in BUILTIN[group]:
        module, _, attribute = BUILTIN[group][name].partition(":")
        return getattr(import_module(module), attribute)
    installed = _installed(group)
    if name not in installed:
        known = ", ".join(sorted({*BUILTIN[group], *installed}))
        raise UsageError(f"unknown {group[:-1]} `{name}`; known: {known}", hint=hint)
    try:
        return installed[name].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the {group[:-1]} `{name}` ({installed[name].value}) cannot be loaded: {error}",
            hint="pip install it again, with what it needs",
        ) from error


def _installed(group: Group) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # takes longer than most commands

    return {point.name: point for point in entry_points(group=f"rerail.{group}")}
