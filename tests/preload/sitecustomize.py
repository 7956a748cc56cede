"""Loaded by every Python process that a test starts: has the plan oracle watch the engine, should it be imported."""

import importlib.abc
import importlib.machinery
import os
import sys

ENGINE = "rerail.app.wiring"


class _Watching(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname != ENGINE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_watch(module):  # type: ignore[no-untyped-def]
                load(module)
                sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
                from plan_oracle import watched  # type: ignore[import-not-found]

                sys.path.pop()
                module.execute = watched(module.execute)

            spec.loader.exec_module = load_and_watch  # type: ignore[method-assign]
        return spec


if "RERAIL_PLAN_ORACLE" in os.environ:
    sys.meta_path.insert(0, _Watching())
