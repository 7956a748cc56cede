"""For authors of plug-ins and for tests: contracts as plain pytest, a clock one can hold, and a file system with faults.

docs/how-to/test-a-plugin.md shows how each of them is used.
"""

from __future__ import annotations

import pytest

# Before they are imported: so that an assertion of a contract says what it saw.
pytest.register_assert_rewrite(
    "rerail.testing.store_contract", "rerail.testing.shared_store_contract", "rerail.testing.executor_contract"
)

from rerail.testing.clock import ManualClock  # noqa: E402
from rerail.testing.disk import MODELS, CrashState, Disk, Model, crash_states  # noqa: E402
from rerail.testing.executor_contract import ExecutorContract  # noqa: E402
from rerail.testing.explorer import Explorer, Judge, Violation, put, replay  # noqa: E402
from rerail.testing.faults import Fault, FaultFS, Op, SimulatedCrash, crash_at, crash_points, fault_points  # noqa: E402
from rerail.testing.shared_store_contract import SharedStoreContract  # noqa: E402
from rerail.testing.store_contract import StoreContract, header, resumed, started  # noqa: E402

__all__ = [
    "MODELS",
    "CrashState",
    "Disk",
    "ExecutorContract",
    "Explorer",
    "Fault",
    "FaultFS",
    "Judge",
    "ManualClock",
    "Model",
    "Op",
    "SharedStoreContract",
    "SimulatedCrash",
    "StoreContract",
    "Violation",
    "crash_at",
    "crash_points",
    "crash_states",
    "fault_points",
    "header",
    "put",
    "replay",
    "resumed",
    "started",
]
