"""A whole platform over the fakes: what commands, Dagster and the demo see when nothing outside is needed.

Units of extraction run in this process, by the same function that Spark tasks run.
"""

from __future__ import annotations

import copy
import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbq_assets.core.config.settings import Settings, parse_settings
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.definitions import Adapters, Parts
from kbq_assets.worker.adapters import open_pseudonyms, open_seal_key
from kbq_assets.worker.backup_place import BackupPlace
from kbq_assets.worker.unit import WorkerPorts
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.fakes.kafka import FakeGroups, FakeKafka
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.fakes.replay import FakeReplayTables, StoreBelow
from kbq_assets_tests.fakes.topic_admin import FakeSubjects, FakeTopicAdmin
from kbq_assets_tests.fakes.warehouse import FakeWarehouse

if TYPE_CHECKING:
    from kbq_assets.extras.notices.model import Notifier
    from kbq_assets.extras.reconcile.account import Expected
    from kbq_assets.ports.object_store import ObjectStore

TOPIC = "shop.orders.v1"
SCHEMAS = {
    1: '{"type":"record","name":"Order","fields":[{"name":"x","type":"long"}]}',
    2: '{"type":"record","name":"Order","fields":[{"name":"x","type":"long"},{"name":"n","type":"string"}]}',
}
SOURCES = f"{TOPIC} dataset=shop table=orders\n"
#: A good record of schema 1 with x = 1, one of an unknown schema, and one that is no Confluent value.
GOOD = struct.pack(">bI", 0, 1) + b"\x02"
UNKNOWN_SCHEMA = struct.pack(">bI", 0, 99) + b"\x02"
POISON = b"\x01poison"


def with_ports(parts: Parts, **ports: Any) -> Parts:
    """The same parts over other adapters, where some ports open in another way."""
    adapters = copy.copy(parts.adapters)
    for name, opened in ports.items():
        assert hasattr(adapters, name), f"no port is called {name}"
        setattr(adapters, name, opened)
    return Parts(adapters)


class FakePlatform:
    """The fakes, and KBQ's parts over them, in which ``TOPIC`` has ``partitions`` partitions.

    Store, broker and registry are in memory; ``folder`` holds the source list. ``expected`` is the producers' log.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sources: str = SOURCES,
        partitions: int = 2,
        keep_records: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.source_topics = folder / "source-topics.txt"
        self.source_topics.write_text(sources)
        self.settings = parse_settings(
            {"KBQ_HOME": str(folder), "KBQ_SOURCE_TOPICS": str(self.source_topics), **(environ or {})}
        )
        self.kafka = FakeKafka()
        self.kafka.create_topic(TOPIC, partitions)
        self.groups = FakeGroups()
        self.store = FaultyMemoryStore()
        self.warehouse = FakeWarehouse(self.store, self.store.path_of, keep_records=keep_records)
        self.registry = FakeRegistry(SCHEMAS)
        self.topic_admin, self.subjects = FakeTopicAdmin(), FakeSubjects()
        self.clock = FakeClock()
        self.expected: dict[TopicPartition, Expected] = {}
        self.notifiers: list[Notifier] = []
        self.engines_opened = 0
        #: whether a unit kills its task
        self.kills: Callable[[Unit], bool] = lambda unit: False
        self.parts = self.reopened()

    def reopened(self, **ports: Any) -> Parts:
        """New parts over the same world, as another process would have. ``ports`` replace those of the world."""
        store = functools.cache(ports.pop("store", lambda: self.store))
        opened = {
            "store": store,
            "load_store": store,
            "offsets": lambda: self.kafka,
            "source": lambda: self.kafka,
            "backup": lambda area, role: store(),
            "worker": lambda: WorkerPorts(self.store, self.kafka, self.registry, self.clock),
            "warehouse": lambda: self.warehouse,
            "engine": self._engine,
            "resident_engines": self._resident_engines,
            "clock": self.clock,
            "expected": lambda: self.expected.get,
            "notifiers": lambda: tuple(self.notifiers),
            "topic_admin": lambda: self.topic_admin,
            "advisory_groups": lambda: self.groups,
            "registry": lambda: self.registry,
            "subjects": lambda: self.subjects,
            "examine_staging": lambda role: (),
            "orchestrator": _no_orchestrator,
            "replay_tables": lambda: FakeReplayTables(self.warehouse),
            "over": lambda settings: self._over(parts.adapters, settings),
        }
        parts: Parts = with_ports(Parts(Adapters(self.settings)), **{**opened, **ports})
        return parts

    def _over(self, live: Adapters, settings: Settings) -> Adapters:
        """Adapters under other settings, whose staging area may lie in a folder of this one's."""
        folder = _folder(settings, self.settings)
        if not folder:
            return Adapters.over(live, settings)
        adapters = Adapters(settings)
        store, load_store = (StoreBelow(each, folder) for each in (live.store(), live.load_store()))
        opened = {
            "store": lambda: store,
            "load_store": lambda: load_store,
            "engine": lambda: self._engine(store),
        }
        for name, port in opened.items():
            setattr(adapters, name, port)
        return adapters

    def produce(
        self, count: int = 1, *, topic: str = TOPIC, partition: int = 0, value: bytes | None = GOOD
    ) -> int:
        """Append records of one value; return the offset of the last."""
        return [self.kafka.produce(TopicPartition(topic, partition), value) for _ in range(count)][-1]

    def objects(self) -> dict[str, bytes]:
        """Everything in the store: equal before and after what must not change anything."""
        return {path: stored.data for path, stored in self.store.objects.items()}

    @contextmanager
    def _engine(self, store: ObjectStore | None = None) -> Iterator[InProcessEngine]:
        self.engines_opened += 1
        ports = WorkerPorts(
            store or self.store,
            self.kafka,
            self.registry,
            self.clock,
            backup=lambda topic: BackupPlace(self.store),
            pseudonyms=lambda: open_pseudonyms(self.settings),
            seal_key=lambda: open_seal_key(self.settings),
        )
        yield InProcessEngine(ports, kills=self.kills)

    @contextmanager
    def _resident_engines(self) -> Iterator[Callable[[Settings], InProcessEngine]]:
        with ExitStack() as stack:
            yield lambda settings: stack.enter_context(self._engine())


def _folder(settings: Settings, above: Settings) -> str:
    return settings.staging_url.removeprefix(above.staging_url).lstrip("/")


def _no_orchestrator(definitions: object) -> Any:
    raise AssertionError("the fakes have no Dagster")
