"""Chooses the reader: KBQ's own client for Kafka's protocol (`fetch`), or librdkafka, which supports everything.

``auto`` uses `fetch`, and falls back to librdkafka if `fetch` cannot read: for options that it does not support,
brokers before 2.1, and message formats before 0.11. librdkafka is used for nothing else, because it unpacks batches
without a memory limit.
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
    """The configured reader. Raises ConfigurationError for options that are not allowed, or that ``fetch`` does not
    support."""
    option = not_spoken(options or {})
    if option and reader == "fetch":
        raise ConfigurationError(
            f"the reader fetch does not support the Kafka option {option}", next_step=_OTHERWISE
        )
    if option and reader == "auto":
        LOGGER.info("reading with librdkafka, because of the option %s", option)
    if option or reader == "librdkafka":
        return LibrdkafkaSource(bootstrap_servers, options)
    if reader == "fetch":
        return FetchOrOther(FetchSource(bootstrap_servers, options), None)
    fetch = FetchSource(bootstrap_servers, options)
    return FetchOrOther(fetch, lambda: LibrdkafkaSource(bootstrap_servers, options))


class FetchOrOther:
    """Reads with ``fetch``, or with the other reader if ``fetch`` cannot. Raises Unavailable if there is no other."""

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
                # The epoch is known only up to the last record. Later positions may belong to a later epoch.
                is_last = len(batch.chunk) and int(batch.chunk.offsets[-1]) + 1 == position
                epoch = batch.leader_epoch if is_last else -1
        except NotSpoken as reason:
            why = str(reason)
        else:
            return
        if self._open_other is None:
            raise Unavailable(f"{range_}: the reader fetch cannot read {why}", next_step=_OTHERWISE)
        LOGGER.info("reading %s with librdkafka from offset %d on: %s", range_, position, why)
        rest = OffsetRange(range_.topic_partition, position, range_.until_offset)
        wait_seconds = options.wait_seconds - (time.monotonic() - started)
        yield from self._open_other().read(
            rest, replace(options, leader_epoch=epoch, wait_seconds=wait_seconds)
        )
