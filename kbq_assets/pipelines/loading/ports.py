"""What a load needs, how it behaves, and what it reports."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kbq_assets.core.extraction.restarts import MayRestart
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.observation.checks import LoadBlock
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks, TopicOptions, default_options
from kbq_assets.pipelines.loading.view import FindBlocks
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import Warehouse


@dataclass(frozen=True)
class LoadPorts:
    """The world of a load."""

    store: ObjectStore
    warehouse: Warehouse
    clock: Clock
    new_uuid: Callable[[], str] = lambda: uuid.uuid4().hex[:16]


@dataclass(frozen=True)
class LoadOptions:
    """How a load run behaves.

    ``options`` are a table's, by the topics of the batch that creates it. ``wait_seconds``: how long to poll running
    jobs; 0 leaves flights open (L8). A job that has not ended ``stuck_seconds`` after its insertion is cancelled; 0
    never cancels. ``concurrency``: tables that are worked on at once, each by a thread; 1 needs none. ``restarts``:
    whether a parked table with files of these topics is tried again by itself.
    ``holds``: the topics whose files wait for a check (L9). ``topics``: those that are extracted now, of some, and how:
    tables wait for these to be complete.
    """

    options: Callable[[TableReference, frozenset[str]], TableOptions] = lambda table, topics: TableOptions()
    wait_seconds: float = 600.0
    poll_seconds: float = 2.0
    stuck_seconds: float = 6 * 3600.0
    concurrency: int = 1
    restarts: MayRestart = lambda topics: True
    blocks: FindBlocks = field(default_factory=LoadBlocks)
    topics: TopicOptions = default_options


@dataclass(frozen=True)
class TableReport:
    """What a run did to one table. ``state`` is idle, waiting, held, parked or failed.

    ``transient``: it failed because something did not answer; the next run may succeed. ``oldest_ms``: the lowest Kafka
    timestamp in what it loaded. ``columns``: the table's, where the run looked at them.
    """

    table: TableReference
    state: str
    rows: int = 0
    files: int = 0
    bytes: int = 0
    oldest_ms: int = 0
    columns: tuple[Column, ...] = ()
    jobs: tuple[str, ...] = ()
    quarantined: int = 0
    message: str = ""
    transient: bool = False


@dataclass(frozen=True)
class Turn:
    """What a table does next: ``go_on`` at once, go on ``later``, plan from a newer ``view``, or ``end``."""

    kind: str
    seconds: float = 0.0


GO_ON, NEXT_VIEW, END = Turn("go_on"), Turn("view"), Turn("end")


def topics_of(files: Iterable[StagedFile]) -> frozenset[str]:
    """The topics that files come from."""
    return frozenset(file.name.topic_partition.topic for file in files)


def blocked_by(files: Iterable[StagedFile], blocks: Mapping[str, LoadBlock]) -> str:
    """What waits for which checks, and what to do."""
    files = list(files)
    named = [blocks[topic] for topic in sorted(topics_of(files))]
    following = " or ".join(dict.fromkeys(command for block in named for command in block.commands))
    rows = sum(file.rows for file in files)
    return f"{rows:,} rows of {len(files):,} files wait: {'; '.join(map(str, named))}; next: {following}"
