"""Benches with a real warehouse, whose loads may die between any two calls."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import duckdb

from kbq_assets.adapters.duckdb import DuckDbWarehouse, engines
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.table_options import table_options
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, LoadReport, load
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.warehouse import KafkaRange, Warehouse
from kbq_assets_tests.crashes.probes import ProbedConnection
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.pipelines.bench import TOPIC, A, Bench

#: Seconds of the loader's clock until a run gives up on a job: with `FastClock` many minutes of ours.
_PATIENCE: Final = 100_000.0


class WarehouseBench(Bench, ABC):
    """Extracts from a topic, and loads into a warehouse. Broker, registry and staging area are in memory."""

    def __init__(self, options: dict[str, Any], partitions: int) -> None:
        self.options = options
        window = WindowLimits(records=4)
        super().__init__(settings=TopicSettings.of(**options), window=window, partitions=partitions)

    @property
    @abstractmethod
    def target(self) -> Warehouse:
        """The warehouse."""

    @abstractmethod
    def dying(self, probe: PointProbe) -> contextlib.AbstractContextManager[Warehouse]:
        """The warehouse, whose calls are points at which the load may die."""

    @abstractmethod
    def refuse(self) -> None:
        """Let the warehouse refuse each further job of `A`, which has one row."""

    @abstractmethod
    def accept(self) -> None:
        """Let it take them again."""

    @abstractmethod
    def execute(self, sql: str) -> None:
        """Run a statement as another user would."""

    @property
    def loader_clock(self) -> Clock:
        """The loader's clock."""
        return self.clock

    def cycle(self, **changes: Any) -> LoadReport:
        """Extract and load, with some options changed."""
        self.settings = TopicSettings.of(**{**self.options, **changes})
        self.extract()
        return self.load_all()

    def load_all(self, target: Warehouse | None = None) -> LoadReport:
        """One run of a loader, to its end."""
        ports = LoadPorts(self.store.view("loader"), target or self.target, self.loader_clock)
        settings = {TOPIC: self.settings}
        options = LoadOptions(
            lambda table, topics: table_options(table, topics, settings),
            wait_seconds=_PATIENCE,
            topics=lambda topics: settings,
        )
        return load(ports, options)

    def load_until(self, point: int) -> int:
        """Load, and die at a point: before or after each write to the store, and each call that the warehouse is to
        run. Returns how many points there were."""
        probe = PointProbe(point)
        self.faults = probe.store
        with self.dying(probe) as target, contextlib.suppress(Crash):
            self.load_all(target)
        self.faults = lambda call: Outcome.OK
        return probe.passed

    def shown(self, table: TableReference = A) -> list[tuple[int, int]]:
        """Partition and offset of the rows that a reader sees, sorted; one entry per row."""
        if self.target.find_table(table) is None:
            return []
        ranges = (KafkaRange(TOPIC, partition, 1) for partition in range(self.partitions))
        found = [(each.partition, self.target.positions(table, each)) for each in ranges]
        return sorted(
            (p, offset) for p, rows in found for offset, count in rows.items() for _ in range(count)
        )

    def table(self) -> TableState:
        """The load state of `A`."""
        return state.read(self.store, TableState, table_state_path(A)).value


class DuckDbBench(WarehouseBench):
    """Loads into a DuckDB file."""

    def __init__(self, path: Path, options: dict[str, Any], partitions: int = 2) -> None:
        super().__init__(options, partitions)
        store = self.store
        self.duckdb = DuckDbWarehouse(
            path / "w.duckdb", open_uri=lambda uri: store.open_read(store.path_of(uri))
        )

    @property
    def target(self) -> DuckDbWarehouse:
        return self.duckdb

    @contextlib.contextmanager
    def dying(self, probe: PointProbe) -> Iterator[Warehouse]:
        """Each statement of DuckDB's is a point."""
        connect = duckdb.connect

        def probed(*args: Any, **options: Any) -> Any:
            return ProbedConnection(connect(*args, **options), probe)  # type: ignore[arg-type]

        with engines.none_idle(), patch.object(duckdb, "connect", probed):
            yield self.duckdb

    def refuse(self) -> None:
        self.execute(f"CREATE UNIQUE INDEX one_row ON {A} (x)")

    def accept(self) -> None:
        self.execute(f"DROP INDEX {A.dataset}.one_row")

    def execute(self, sql: str) -> None:
        with duckdb.connect(self.duckdb.path) as connection:
            connection.execute(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.duckdb.connect_readonly() as connection:
            return connection.execute(sql).fetchall()


class PointProbe:
    """Counts points, and dies at one."""

    def __init__(self, point: int) -> None:
        self._point = point
        self.passed = 0

    def __call__(self, kind: str) -> None:
        """A call that changes nothing."""
        if self._is_here():
            raise Crash

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
        """A call that changes something, or a statement of DuckDB's."""
        if self._is_here():
            raise Crash
        result = call()
        if self._is_here():
            raise Crash
        return result
