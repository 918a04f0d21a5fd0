"""Ports, options and report of a load."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kbq_assets.core.extraction.restarts import MayRestart
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.observation.checks import LoadBlock
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks, TopicOptions, default_options
from kbq_assets.pipelines.loading.view import FindBlocks
from kbq_assets.ports.asset_checks import AssetChecks
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import Warehouse


@dataclass(frozen=True)
class LoadPorts:
    """The ports of a load."""

    store: ObjectStore
    warehouse: Warehouse
    clock: Clock
    new_uuid: Callable[[], str] = lambda: uuid.uuid4().hex[:16]
    #: the orchestrator's asset checks, if it runs the load
    checks: AssetChecks | None = None


@dataclass(frozen=True)
class LoadOptions:
    """Options of a load run."""

    #: returns a table's options, given the topics of the batch
    options: Callable[[TableReference, frozenset[str]], TableOptions] = lambda table, topics: TableOptions()
    #: how long to poll running jobs; 0 leaves jobs in flight (L8)
    wait_seconds: float = 600.0
    poll_seconds: float = 2.0
    #: cancel a job that has not ended this long after its insertion; 0 never cancels
    stuck_seconds: float = 6 * 3600.0
    #: tables loaded at once, each in a thread; 1 needs no thread
    concurrency: int = 1
    #: whether a parked table with files of these topics is tried again automatically
    restarts: MayRestart = lambda topics: True
    #: finds the topics whose files wait for a check (L9)
    blocks: FindBlocks = field(default_factory=LoadBlocks)
    #: options of the given topics, without those that are not extracted now: complete hours wait for the others. Called
    #: after a view, without its unknown topics. Raises ConfigurationError if another one has become unknown
    topics: TopicOptions = default_options
    #: a job of at least this many small files reads a few large copies instead (L15); 0: never
    merge_files: int = 0


@dataclass(frozen=True)
class TableReport:
    """The result of a run for one table."""

    table: TableReference
    #: idle, waiting, blocked, parked or failed
    state: str
    rows: int = 0
    files: int = 0
    bytes: int = 0
    #: lowest Kafka timestamp that was loaded
    oldest_ms: int = 0
    #: the table's columns, if the run read them
    columns: tuple[Column, ...] = ()
    jobs: tuple[str, ...] = ()
    quarantined: int = 0
    message: str = ""
    #: commands that resume a parked table
    commands: tuple[str, ...] = ()
    #: whether a remote system did not answer, so the next run may succeed
    transient: bool = False


@dataclass(frozen=True)
class Turn:
    """A table's next step: ``continue`` at once, continue ``later``, plan from a newer ``view``, or ``end``."""

    kind: str
    seconds: float = 0.0


CONTINUE, NEXT_VIEW, END = Turn("continue"), Turn("view"), Turn("end")


def topics_of(files: Iterable[StagedFile]) -> frozenset[str]:
    return frozenset(file.name.topic_partition.topic for file in files)


def blocked_by(files: Iterable[StagedFile], blocks: Mapping[str, LoadBlock]) -> str:
    """A message about files that wait: how many, the failed checks, and the next step."""
    files = list(files)
    named = [blocks[topic] for topic in sorted(topics_of(files))]
    following = " or ".join(dict.fromkeys(command for block in named for command in block.commands))
    waiting = counted(sum(file.rows for file in files), "row waits", "rows wait")
    return f"{waiting} in {counted(len(files), 'file')}: {'; '.join(map(str, named))}; next: {following}"
