"""The fake keeps the contract of replays, and a store below another one is a store."""

from __future__ import annotations

import pytest

from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.replay import ReplayTables
from kbq_assets.ports.warehouse import Warehouse
from kbq_assets_tests.contracts.object_store import ObjectStoreContract
from kbq_assets_tests.contracts.replay import ReplayTablesContract
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.replay import FakeReplayTables, StoreBelow
from kbq_assets_tests.fakes.test_warehouse import Files, path_of
from kbq_assets_tests.fakes.warehouse import FakeWarehouse


class TestFakeReplayTables(ReplayTablesContract):
    @pytest.fixture
    def warehouse(self) -> Warehouse:
        return FakeWarehouse(Files(), path_of, keep_records=True)

    @pytest.fixture
    def replays(self, warehouse: FakeWarehouse) -> ReplayTables:
        return FakeReplayTables(warehouse)


class TestFakeLakeTables(TestFakeReplayTables):
    """As in a lake, each table has its own job."""

    @pytest.fixture
    def warehouse(self) -> Warehouse:
        return FakeWarehouse(Files(), path_of, keep_records=True, one_transaction=False)


class TestStoreBelow(ObjectStoreContract):
    rounds, many = 5, 200

    @pytest.fixture
    def store(self) -> ObjectStore:
        store = FaultyMemoryStore()
        store.create("commits/other.json", b"next to the folder")
        return StoreBelow(store, "replayed/7")
