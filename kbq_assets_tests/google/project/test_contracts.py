"""The contracts of store and warehouse, in a real project."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import Warehouse
from kbq_assets_tests.contracts.object_store import Opener as StoreOpener
from kbq_assets_tests.contracts.object_store import SharedObjectStoreContract
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, Opener, SharedWarehouseContract, Stage
from kbq_assets_tests.google.project import place
from kbq_assets_tests.google.project.place import Place
from kbq_assets_tests.google.project.warehouse import OpenProject

pytestmark = pytest.mark.slow


class TestBucket(SharedObjectStoreContract):
    """Fewer rounds: Cloud Storage takes one change of an object a second."""

    rounds = 5
    many = 1_101
    many_seconds = 120.0
    processes = 2

    @pytest.fixture
    def store(self, gcp: Place, corner: str) -> ObjectStore:
        return gcp.store(corner)

    @pytest.fixture
    def opener(self, gcp: Place, corner: str) -> StoreOpener:
        return partial(gcp.store, corner)

    def fill(self, store: ObjectStore, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda name: store.create(name, b""), names))


class TestBigQuery(SharedWarehouseContract):
    #: Two tags of a taxonomy in the datasets' location, if there is one.
    policy_tags = place.policy_tags(os.environ)
    appends_columns = True

    @pytest.fixture
    def opener(self, gcp: Place, corner: str) -> Opener:
        return OpenProject(gcp, corner)

    @pytest.fixture
    def warehouse(self, opener: Opener) -> Warehouse:
        return opener()

    @pytest.fixture
    def stage(self, gcp: Place, corner: str) -> Stage:
        store = gcp.store(corner)

        def write(name: str, data: bytes) -> str:
            store.create(name, data)
            return store.uri(name)

        return write

    def test_a_job_for_a_missing_table_fails(self, warehouse: Warehouse, stage: Stage) -> None:
        """In a dataset that exists: one that does not has no location, and the insertion is refused."""
        warehouse.create_table(TableReference(TABLE.dataset, "other"), columns_of(SCHEMA), TableOptions())
        super().test_a_job_for_a_missing_table_fails(warehouse, stage)
