"""Ports, limits and report of an extraction."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.extraction.cost import Usage
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.extraction.throttle import ReadLimits
from kbq_assets.core.extraction.turns import SliceLimits
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.observation.run_totals import WorkerUse
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.counts import Counts, total
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.evolution import Evolution
from kbq_assets.pipelines.backup.report import BackupReport
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore


def no_backups(area: str) -> ObjectStore:
    """Raise ConfigurationError: there is no place for backups."""
    raise ConfigurationError(f"there is no place for {area} backups", next_step="report a bug")


def _random_run() -> str:
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True)
class ExtractionLimits:
    """Bounds of one run."""

    #: time limit: no task starts after it, and running tasks stop reading
    seconds: float = 600.0
    #: time after that until unfinished and queued tasks are canceled
    grace_seconds: float = 120.0
    #: time that running tasks have to end if the run drains; Kubernetes kills a pod after 30 s
    drain_seconds: float = 20.0
    #: upper bounds of what the run reads
    total: ReadLimits = field(default_factory=ReadLimits)
    slices: SliceLimits = field(default_factory=SliceLimits)
    window: WindowLimits = field(default_factory=WindowLimits)
    #: whether done files are written (E5)
    done_files: bool = True


@dataclass(frozen=True)
class ExtractionPorts:
    """The ports of an extraction. ``new_run`` makes the name of a run. If ``publishing_threads`` is 1, the loop that
    submits tasks also publishes the commits."""

    store: ObjectStore
    offsets: OffsetReader
    engine: ExtractionEngine
    clock: Clock
    new_run: Callable[[], str] = _random_run
    publishing_threads: int = 1
    #: opens the store of a backup area
    open_backup: Callable[[str], ObjectStore] = no_backups
    #: whether the run should end soon and keep what its tasks have read
    is_draining: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Progress:
    """Progress of a run: ``positions`` of all units, ``published`` positions, and ``units`` in running tasks."""

    positions: int
    published: int
    records: int
    message: str = ""
    units: int = 0
    workers: tuple[WorkerUse, ...] = ()


@dataclass(frozen=True)
class PartitionReport:
    """Sums over the windows that a run published of one partition."""

    topic_partition: TopicPartition
    first: int
    until: int
    counts: Counts
    windows: int
    files: tuple[commits.StagedFile, ...]


@dataclass(frozen=True)
class ExtractionReport:
    """The result of a run."""

    plan: ExtractionPlan
    partitions: tuple[PartitionReport, ...]
    stops: tuple[PartitionStop, ...]
    #: errors; the next run reads these partitions again
    failures: Mapping[TopicPartition, str]
    #: ranges left for the next run
    unfinished: int
    seconds: float
    costs: tuple[Usage, ...] = ()
    #: files that were staged but could not be published
    lost_files: int = 0
    #: worker processes, the busiest first
    workers: tuple[WorkerUse, ...] = ()
    #: new schema variants
    evolved: tuple[Evolution, ...] = ()
    #: errors of advisory groups whose positions were not committed
    advisory_failures: Mapping[str, str] = field(default_factory=dict)
    backup: BackupReport = field(default_factory=BackupReport)
    #: partitions with a failure that only a person can end
    refused: frozenset[TopicPartition] = frozenset()
    #: whether the run's time ended before it had read all that the topics' limits allow
    is_behind: bool = False

    @property
    def totals(self) -> Counts:
        """Counts, summed over all partitions."""
        return total(p.counts for p in self.partitions)

    @property
    def cause(self) -> str:
        """The most common failure, with one of its partitions; "" if there is none."""
        for message, _ in Counter(self.failures.values()).most_common(1):
            return f"{min(tp for tp, text in self.failures.items() if text == message)}: {message}"
        return ""
