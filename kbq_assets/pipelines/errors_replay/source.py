"""Error rows as a source of records: their raw bytes at their own offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.ports.kafka import VALUES_ONLY, ReadOptions, RecordBatch
from kbq_assets.ports.warehouse import ErrorRow
from kbq_assets.wire.chunk import Chunk, RawRecord


@dataclass(frozen=True)
class ErrorRowSource:
    """The records of one partition's error rows, in offset order (`ports.kafka.RecordSource`)."""

    rows: Sequence[ErrorRow]

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        records = [
            RawRecord(row.value, row.offset, row.timestamp_ms, row.key, row.headers)
            for row in self.rows
            if range_.from_offset <= row.offset < range_.until_offset
        ]
        chunk = Chunk.from_messages(records, keys=options.keys, headers=options.headers)
        yield RecordBatch(chunk, range_.until_offset, options.leader_epoch)
