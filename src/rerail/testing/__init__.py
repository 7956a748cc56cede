"""For authors of plug-ins and for tests: contracts as plain pytest, and a clock one can hold.

docs/how-to/test-a-plugin.md shows how each of them is used.
"""

from __future__ import annotations

import pytest

# Before they are imported: so that an assertion of a contract says what it saw.
pytest.register_assert_rewrite(
    "rerail.testing.store_contract", "rerail.testing.shared_store_contract", "rerail.testing.executor_contract"
)

from rerail.testing.clock import ManualClock  # noqa: E402
from rerail.testing.executor_contract import ExecutorContract  # noqa: E402
from rerail.testing.shared_store_contract import SharedStoreContract  # noqa: E402
from rerail.testing.store_contract import StoreContract, header, resumed, started  # noqa: E402

__all__ = [
    "ExecutorContract",
    "ManualClock",
    "SharedStoreContract",
    "StoreContract",
    "header",
    "resumed",
    "started",
]
