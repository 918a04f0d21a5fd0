"""The choice of a reader: KBQ's own client of Kafka's protocol (`fetch`), or librdkafka, which supports everything.

``auto`` uses `fetch` and falls back to librdkafka for what `fetch` cannot read: options that it does not know, a
broker before 2.1, message formats before 0.11. librdkafka unpacks batches without a limit of memory, so it gets no
others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from kbq_assets.adapters.kafka.fetch.errors import NotSpoken
from kbq_assets.adapters.kafka.fetch.librdkafka_options import not_spoken
from kbq_assets.adapters.kafka.fetch.source import FetchSource
from kbq_assets.adapters.kafka.librdkafka import LibrdkafkaSource
from kbq_assets.adapters.kafka.options import LOGGER
from kbq_assets.core.config.parts import KafkaReader
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.ports.kafka import VALUES_ONLY, ReadOptions, RecordBatch, RecordSource

_OTHERWISE: Final = "set KBQ_READER=auto: librdkafka then reads what this reader cannot"


def open_reader(
    bootstrap_servers: str, options: Mapping[str, str] | None = None, reader: KafkaReader = "auto"
) -> RecordSource:
    """The configured reader. Raises ConfigurationError for options that are not allowed, or that ``fetch`` does
    not know."""
    option = not_spoken(options or {})
    if option and reader == "fetch":
        raise ConfigurationError(
            f"the reader fetch does not know the Kafka option {option}", next_step=_OTHERWISE
        )
    if option and reader == "auto":
        LOGGER.info("librdkafka reads, because of the option %s", option)
    if option or reader == "librdkafka":
        return LibrdkafkaSource(bootstrap_servers, options)
    if reader == "fetch":
        return FetchOrOther(FetchSource(bootstrap_servers, options), None)
    fetch = FetchSource(bootstrap_servers, options)
    return FetchOrOther(fetch, lambda: LibrdkafkaSource(bootstrap_servers, options))


class FetchOrOther:
    """Reads with ``fetch``, else with the other reader; if there is none, raises Unavailable."""

    def __init__(self, fetch: RecordSource, open_other: Callable[[], RecordSource] | None) -> None:
        self._fetch = fetch
        self._open_other = open_other

    def __repr__(self) -> str:
        return f"FetchOrOther({self._fetch!r})"

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        """Read exactly ``range_``; see the port."""
        position, epoch, started = range_.from_offset, options.leader_epoch, time.monotonic()
        try:
            for batch in self._fetch.read(range_, options):
                yield batch
                position = batch.position
                # Known up to the last record: what follows may belong to a later epoch.
                is_last = len(batch.chunk) and int(batch.chunk.offsets[-1]) + 1 == position
                epoch = batch.leader_epoch if is_last else -1
        except NotSpoken as reason:
            why = str(reason)
        else:
            return
        if self._open_other is None:
            raise Unavailable(f"{range_}: the reader fetch cannot read {why}", next_step=_OTHERWISE)
        LOGGER.info("librdkafka reads %s from offset %d on: %s", range_, position, why)
        rest = OffsetRange(range_.topic_partition, position, range_.until_offset)
        wait_seconds = options.wait_seconds - (time.monotonic() - started)
        yield from self._open_other().read(
            rest, replace(options, leader_epoch=epoch, wait_seconds=wait_seconds)
        )
