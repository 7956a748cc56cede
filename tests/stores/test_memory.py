"""The memory store keeps the contract of every store."""

from __future__ import annotations

import pytest

from rerail import testing
from rerail.ports import Store
from rerail.stores.memory import MemoryStore


class TestMemoryStore(testing.StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()
