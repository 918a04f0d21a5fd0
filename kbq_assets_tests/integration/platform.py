"""The real platform on the real broker, registry, store and DuckDB, but without Spark: units run in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kbq_assets import definitions
from kbq_assets.adapters.clock import SystemClock
from kbq_assets.adapters.kafka.offsets import KafkaOffsetReader
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.definitions import Parts
from kbq_assets.extras.reconcile.account import Expected
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.worker.adapters import open_registry, open_source, open_store
from kbq_assets.worker.unit import WorkerPorts
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.fakes.platform import with_ports

#: Put between pipelines and a port: gets the port and its name (store, offsets, source, registry, warehouse).
Wrap = Callable[[Any, str], Any]


def open_parts(
    environ: Mapping[str, str],
    expected: Mapping[TopicPartition, Expected] | None = None,
    wrap: Wrap = lambda port, name: port,
    *,
    offsets_seconds: float = 120,
) -> Parts:
    """The parts of an environment. ``expected`` is the producers' log; the broker is given ``offsets_seconds``."""
    parts = definitions.parts(environ)
    opened, settings = parts.adapters, parts.adapters.settings

    @contextmanager
    def engine() -> Iterator[InProcessEngine]:
        yield InProcessEngine(
            WorkerPorts(
                wrap(open_store(settings), "store"),
                wrap(open_source(settings), "source"),
                wrap(open_registry(settings), "registry"),
                SystemClock(),
            ),
            # The task that started last ends first: slices that are read ahead have to be held.
            slots=4,
            choose=lambda tasks: tasks - 1,
        )

    def offsets() -> OffsetReader:
        reader = KafkaOffsetReader(settings.kafka.bootstrap_servers, timeout_seconds=offsets_seconds)
        return wrap(reader, "offsets")  # type: ignore[no-any-return]

    return with_ports(
        parts,
        store=lambda: wrap(opened.store(), "store"),
        load_store=lambda: wrap(opened.load_store(), "store"),
        offsets=offsets,
        warehouse=lambda: wrap(opened.warehouse(), "warehouse"),
        engine=engine,
        expected=lambda: (expected or {}).get,
    )
