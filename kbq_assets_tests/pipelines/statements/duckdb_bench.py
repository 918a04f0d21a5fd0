"""A bench with a DuckDB warehouse, whose load may die between any two calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.table_options import table_options
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, LoadReport, load
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.crashes.probes import ProbedConnection
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.pipelines.bench import TOPIC, A, Bench


class DuckDbBench(Bench):
    """Extracts from a topic, and loads into a file."""

    def __init__(self, path: Path, options: dict[str, Any], partitions: int = 2) -> None:
        self.options = options
        window = WindowLimits(records=4)
        super().__init__(settings=TopicSettings.of(**options), window=window, partitions=partitions)
        store = self.store
        self.duckdb = DuckDbWarehouse(
            path / "w.duckdb", open_uri=lambda uri: store.open_read(store.path_of(uri))
        )

    def cycle(self, **changes: Any) -> LoadReport:
        """Extract and load, with some options changed."""
        self.settings = TopicSettings.of(**{**self.options, **changes})
        self.extract()
        return self.load_duckdb()

    def load_duckdb(self) -> LoadReport:
        ports = LoadPorts(self.store.view("loader"), self.duckdb, self.clock)
        settings = {TOPIC: self.settings}
        options = LoadOptions(
            lambda table, topics: table_options(table, topics, settings), topics=lambda topics: settings
        )
        return load(ports, options)

    def load_until(self, point: int) -> int:
        """Load, and die at a point: before or after each write to the store, and each statement that DuckDB is to
        run. Returns how many points there were."""
        probe = _Probe(point)
        self.faults, connect = probe.store, duckdb.connect

        def probed(*args: Any, **options: Any) -> Any:
            return ProbedConnection(connect(*args, **options), probe)  # type: ignore[arg-type]

        with patch.object(duckdb, "connect", probed), contextlib.suppress(Crash):
            self.load_duckdb()
        self.faults = lambda call: Outcome.OK
        return probe.passed

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.duckdb.connect_readonly() as connection:
            return connection.execute(sql).fetchall()

    def table(self) -> TableState:
        return state.read(self.store, TableState, table_state_path(A)).value


class _Probe:
    """Counts points, and dies at one."""

    def __init__(self, point: int) -> None:
        self._point = point
        self.passed = 0

    def _is_here(self) -> bool:
        self.passed += 1
        return self.passed == self._point

    def store(self, call: Call) -> Outcome:
        """A call of the store: it dies on either side of a write."""
        if not call.writes:
            return Outcome.OK
        before, after = self._is_here(), self._is_here()
        return Outcome.CRASH_BEFORE if before else Outcome.CRASH_AFTER if after else Outcome.OK

    def around(self, kind: str, call: Callable[[], Any]) -> Any:
        """A statement of DuckDB's."""
        if self._is_here():
            raise Crash
        result = call()
        if self._is_here():
            raise Crash
        return result
