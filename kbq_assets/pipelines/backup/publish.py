"""Publishes the windows of backups. Each area has its own commits and its own publisher (B1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace

from kbq_assets.core.backup.areas import area_of
from kbq_assets.core.backup.sharing import without_backup
from kbq_assets.core.errors import ConfigurationError, StateError, TransientError
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.extraction.units import Outage, Unit, UnitOutcome
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import stop_commands
from kbq_assets.pipelines.backup.plan import backup_commands
from kbq_assets.pipelines.backup.report import BackupReport
from kbq_assets.pipelines.extraction.prepare import Prepared
from kbq_assets.pipelines.extraction.publisher import Publisher
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore

Prepare = Callable[[ObjectStore, ExtractionPlan], Prepared]


class BackupPublishers:
    """The backups of one run. If an area fails, it delays neither the tables nor other areas."""

    def __init__(
        self, open_area: Callable[[str], ObjectStore], offsets: OffsetReader, clock: Clock, pool: Executor
    ) -> None:
        self._open_area = open_area
        self._offsets = offsets
        self._clock = clock
        self._pool = pool
        self._publishers: dict[str, Publisher] = {}
        self._stops: list[PartitionStop] = []
        self._failures: dict[TopicPartition, str] = {}
        self._refused: set[TopicPartition] = set()

    def prepare(self, planned: ExtractionPlan, units: Iterable[Unit], prepare: Prepare) -> list[Unit]:
        """Create the commits that backups need, and return the run's ``units`` with the units that only backups need.
        Where a backup's commit, or its area, cannot be prepared, only the tables are read."""
        units = list(units)
        for area, backup in planned.backups.items():
            self._stops += backup.stops
            self._failures |= backup.failures
            shared = [unit for unit in units if unit.backup_epoch and area_of(unit.settings) == area]
            try:
                found = prepare(self._open_area(area), backup)
            except (TransientError, StateError, ConfigurationError) as error:
                self._failures |= {u.range.topic_partition: str(error) for u in (*shared, *backup.units)}
            else:
                self._stops += map(_of_backup, found.stops)
                self._failures |= found.failures
                units += found.units
                shared = [unit for unit in shared if found.lacks(unit)]
            lost = {unit.range.topic_partition for unit in shared}
            units = [without_backup(u) if u.range.topic_partition in lost else u for u in units]
        return units

    def add(self, outcome: UnitOutcome) -> None:
        """Add an outcome's windows and its stop to its area's next swap."""
        tp, area = outcome.unit.range.topic_partition, area_of(outcome.unit.settings)
        if outcome.failure:
            self._failures[tp] = outcome.failure
        if outcome.outage is Outage.REFUSED:
            self._refused.add(tp)
        if outcome.stop is not None:
            reason, message = outcome.stop.reason, outcome.stop.message
            self._stops.append(PartitionStop(tp, reason, message, backup_commands(stop_commands(reason, tp))))
        if area not in self._publishers:
            store = self._open_area(area)
            self._publishers[area] = Publisher(
                store, self._offsets, self._clock, self._pool, done_files=False
            )
        self._publishers[area].add(outcome)

    def flush_due(self) -> None:
        """`Publisher.flush_due` for every area."""
        for publisher in self._publishers.values():
            publisher.flush_due()

    def flush(self) -> None:
        """Publish everything, and wait until it is published."""
        for publisher in self._publishers.values():
            publisher.flush()

    def report(self) -> BackupReport:
        windows = {
            tp: tuple(each)
            for publisher in self._publishers.values()
            for tp, each in sorted(publisher.published.items())
        }
        failures, stops = dict(self._failures), list(self._stops)
        for publisher in self._publishers.values():
            failures |= publisher.failures
            stops += map(_of_backup, publisher.stops)
        return BackupReport(windows, tuple(stops), failures, frozenset(self._refused))


def _of_backup(stop: PartitionStop) -> PartitionStop:
    """A stop with the commands that resume the backup."""
    return replace(stop, commands=backup_commands(stop.commands))
