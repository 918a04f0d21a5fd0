"""Produces the demo's topics and writes the producers' log.

Every topic is one deterministic sequence of records. A run reads back the existing records, compares them with the
sequence one by one, produces the rest, and logs the offsets that the broker reports to the delivery callbacks.
So a second run produces nothing, a killed run is completed by the next one, and a lost log is rebuilt. A run never
deletes a topic, because extraction may have begun.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kbq_assets.core.errors import StateError, Unavailable
from kbq_assets.local.demo.broker import DemoBroker, ReadBack, TopicState, checksum, register_schema
from kbq_assets.local.demo.log import FILE_NAME, PartitionLog, ProducersLog, TopicLog
from kbq_assets.local.demo.topics import FLIGHTS_TOPIC, TOPICS, DemoRecord, DemoTopic, Step

_LOGGER: Final = logging.getLogger("kbq.demo")
_SILENT: Final = Console(quiet=True)
_FLUSH_SECONDS: Final = 60.0
#: librdkafka's log level for errors: it warns about a broker that has just started.
_ERRORS: Final = 3
#: Number of records after which callbacks are served and the progress bar is updated.
_POLL_RECORDS: Final = 2_000


def produce_demo(
    bootstrap_servers: str,
    registry_url: str,
    home: Path,
    console: Console | None = None,
    topics: Sequence[DemoTopic] = TOPICS,
) -> ProducersLog:
    """Bring every demo topic to its full length, and return the log, which is stored in ``<home>/demo/``.

    Raises Unavailable (broker, registry), ConfigurationError (data packages), or StateError if a topic has records that
    the demo did not produce.
    """
    run = _Production(bootstrap_servers, registry_url, home / "demo" / FILE_NAME, console or _SILENT)
    return run.complete(topics, {})


def produce_more(
    bootstrap_servers: str,
    registry_url: str,
    home: Path,
    count: int,
    console: Console | None = None,
    topic: DemoTopic = FLIGHTS_TOPIC,
) -> ProducersLog:
    """Append ``count`` flights to those of `produce_demo`, and to the log. Raises the same errors."""
    path = home / "demo" / FILE_NAME
    logged = ProducersLog.load(path).topics.get(topic.name)
    if logged is None:
        raise StateError(f"{path} has no topic {topic.name}", next_step="run `kbq demo` first")
    run = _Production(bootstrap_servers, registry_url, path, console or _SILENT)
    return run.complete([topic], {topic.name: logged.target + count})


class _Production:
    """One call of `produce_demo` or `produce_more`."""

    def __init__(self, bootstrap_servers: str, registry_url: str, path: Path, console: Console) -> None:
        self._registry_url = registry_url
        self._path = path
        self._broker = DemoBroker(bootstrap_servers)
        self._log = ProducersLog.load(path)
        self._progress = Progress(
            TextColumn("  {task.description:18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("records"),
            TimeElapsedColumn(),
            console=console,
        )

    def complete(self, topics: Iterable[DemoTopic], targets: Mapping[str, int]) -> ProducersLog:
        """Produce topics up to their targets: those given, otherwise those of earlier runs, otherwise the defaults."""
        cluster = self._broker.cluster_id()
        if self._log.cluster_id != cluster:
            self._log = ProducersLog(cluster)
        with self._progress:
            for topic in topics:
                self._complete_topic(topic, targets.get(topic.name))
        return self._log

    def _complete_topic(self, topic: DemoTopic, target: int | None) -> None:
        self._broker.ensure_topic(topic.name, topic.partitions)
        state = self._broker.state(topic.name)
        logged = self._log.topics.get(topic.name)
        if logged is None or logged.topic_id != state.topic_id:
            logged = TopicLog(state.topic_id, topic.records)
        wanted = target or logged.target
        bar = self._progress.add_task(topic.name, total=wanted)
        if logged.complete and logged.target == wanted and _has_all(state, logged):
            self._progress.update(bar, completed=wanted)
            return
        # Log the intent first: if this run crashes from here on, the next one continues to the same length.
        self._log.topics[topic.name] = replace(logged, target=wanted, complete=False)
        self._log.save(self._path)
        partitions = self._produce(topic, wanted, lambda count: self._progress.advance(bar, count))
        self._log.topics[topic.name] = TopicLog(state.topic_id, wanted, True, partitions)
        self._log.save(self._path)

    def _produce(
        self, topic: DemoTopic, target: int, advance: Callable[[int], None]
    ) -> dict[int, PartitionLog]:
        ids = {
            name: register_schema(self._registry_url, name.partition("#")[0], schema)
            for name, schema in topic.schemas.items()
        }
        try:
            writer = _TopicProducer(topic, self._broker.bootstrap_servers)
            # Only now: opening the writer aborted any open transaction of a dead run.
            state = self._broker.state(topic.name)
            if not state.is_empty:
                state = self._broker.settled_state(topic.name)
            there = self._broker.read_back(topic.name, state)
            written = _Written(topic, there)
            for step in topic.sequence(ids, target):
                written.log(writer.write(step, written.missing(step, advance), advance))
        except KafkaException as raised:
            raise _undelivered(topic.name, raised.args[0]) from raised
        self._broker.settled_state(topic.name)
        return written.partitions


def _has_all(state: TopicState, logged: TopicLog) -> bool:
    """Whether all logged records are still on the broker."""
    return all(state.ends.get(p, (0, 0))[1] >= part.end for p, part in logged.partitions.items())


class _Written:
    """The records on the broker, from earlier runs and from this one."""

    def __init__(self, topic: DemoTopic, there: Mapping[int, list[ReadBack]]) -> None:
        self.partitions: dict[int, PartitionLog] = defaultdict(PartitionLog)
        self._topic = topic
        self._there = {partition: deque(found) for partition, found in there.items()}

    def missing(self, step: Step, advance: Callable[[int], None]) -> Iterator[DemoRecord]:
        """The missing records of a step. Logs the existing ones.

        Raises StateError for a record that the demo did not produce.
        """
        if step.commit is False:
            # Aborted records cannot be read back, but they were produced if a later record exists.
            yield from () if any(self._there.values()) else step.records
            return
        found = 0
        for record in step.records:
            if not self._there.get(record.partition):
                yield record
                continue
            self._log_found(record, self._there[record.partition].popleft())
            found += 1
            if found % _POLL_RECORDS == 0:
                advance(_POLL_RECORDS)
        advance(found % _POLL_RECORDS)

    def log(self, delivered: _Acknowledgement) -> None:
        for partition, outcomes in delivered.outcomes.items():
            for offset, outcome in zip(delivered.offsets[partition], outcomes, strict=True):
                self.partitions[partition].add(offset, outcome)

    def _log_found(self, record: DemoRecord, found: ReadBack) -> None:
        if found.checksum != checksum(record.key, record.value):
            raise StateError(
                f"{self._topic.name}[{record.partition}] has a record at offset {found.offset} that the demo "
                "did not produce",
                next_step="delete that topic, or all of the local stack's data (make clean), then run it again",
            )
        self.partitions[record.partition].add(found.offset, record.outcome)


@dataclass
class _Acknowledgement:
    """One step's outcomes in sending order, and the broker's offsets for them, by partition."""

    outcomes: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    errors: list[KafkaError] = field(default_factory=list)

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Note a delivery. The producer is idempotent, so callbacks of a partition arrive in sending order."""
        partition, offset = message.partition(), message.offset()
        if error is not None:
            self.errors.append(error)
        elif partition is not None and offset is not None:
            self.offsets[partition].append(offset)


class _TopicProducer:
    """A producer of one topic."""

    def __init__(self, topic: DemoTopic, bootstrap_servers: str) -> None:
        self._topic = topic.name
        configuration: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "message.timeout.ms": int(_FLUSH_SECONDS * 1000),
            "log_level": _ERRORS,
        }
        if topic.transactional:
            configuration["transactional.id"] = f"kbq-demo-{topic.name}"
        self._producer = Producer(configuration, logger=_LOGGER)
        if topic.transactional:
            self._producer.init_transactions(_FLUSH_SECONDS)

    def write(
        self, step: Step, records: Iterator[DemoRecord], advance: Callable[[int], None]
    ) -> _Acknowledgement:
        """Produce records, wait for the broker, and return the committed ones. Raises Unavailable."""
        first = next(records, None)
        if first is None:
            return _Acknowledgement()
        if step.commit is not None:
            self._producer.begin_transaction()
        delivered = self._send(
            itertools.chain([first], records), advance if step.commit is not False else _nowhere
        )
        if step.commit:
            self._producer.commit_transaction(_FLUSH_SECONDS)
        elif step.commit is False:
            self._producer.abort_transaction(_FLUSH_SECONDS)
        return _Acknowledgement() if step.commit is False else delivered

    def _send(self, records: Iterable[DemoRecord], advance: Callable[[int], None]) -> _Acknowledgement:
        delivered, sent = _Acknowledgement(), 0
        for record in records:
            self._send_one(record, delivered)
            delivered.outcomes[record.partition].append(record.outcome)
            sent += 1
            if sent % _POLL_RECORDS == 0:
                self._producer.poll(0)
                advance(_POLL_RECORDS)
        unsent = self._producer.flush(_FLUSH_SECONDS)
        if delivered.errors or unsent:
            raise _undelivered(self._topic, delivered.errors[0] if delivered.errors else None)
        advance(sent % _POLL_RECORDS)
        return delivered

    def _send_one(self, record: DemoRecord, delivered: _Acknowledgement) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    record.partition,
                    on_delivery=delivered.on_delivery,
                    timestamp=record.timestamp,
                    headers=list(record.headers),
                )
            except BufferError:
                self._producer.poll(0.1)  # the queue is full: wait for deliveries
            else:
                return


def _nowhere(count: int) -> None:
    """Show no progress for aborted records."""


def _undelivered(topic: str, error: KafkaError | None) -> Unavailable:
    reason = error.str() if error else f"no answer for {_FLUSH_SECONDS:.0f} s"
    return Unavailable(
        f"records of {topic} were not delivered: {reason}",
        next_step="run it again: it continues where it stopped",
    )
