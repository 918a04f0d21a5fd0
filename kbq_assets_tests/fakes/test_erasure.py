"""The fake keeps the contract of erasures."""

from __future__ import annotations

import pytest

from kbq_assets.ports.warehouse import Warehouse
from kbq_assets_tests.contracts.erasure import ErasureTablesContract
from kbq_assets_tests.fakes.test_warehouse import Files, path_of
from kbq_assets_tests.fakes.warehouse import FakeWarehouse


class TestFakeErasureTables(ErasureTablesContract):
    @pytest.fixture
    def warehouse(self) -> Warehouse:
        return FakeWarehouse(Files(), path_of, keep_records=True)
