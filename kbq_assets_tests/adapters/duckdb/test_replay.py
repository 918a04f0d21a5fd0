"""The DuckDB file keeps the contract of replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.adapters.duckdb.replay import DuckDbReplayTables
from kbq_assets.adapters.warehouses import open_replay_tables
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.ports.replay import ReplayTables
from kbq_assets.ports.warehouse import Warehouse
from kbq_assets_tests.contracts.erasure import no_tasks
from kbq_assets_tests.contracts.replay import ReplayTablesContract


class TestDuckDbReplayTables(ReplayTablesContract):
    @pytest.fixture
    def warehouse(self, tmp_path: Path) -> Warehouse:
        return DuckDbWarehouse(tmp_path / "w.duckdb")

    @pytest.fixture
    def replays(self, tmp_path: Path) -> ReplayTables:
        settings = parse_settings({"KBQ_WAREHOUSE": f"duckdb:{tmp_path / 'w.duckdb'}"})
        found = open_replay_tables(settings, no_tasks)
        assert isinstance(found, DuckDbReplayTables)
        return found
