"""A peer: a careful script with confluent-kafka and fastavro that decodes, adds columns, and writes Avro files.

``python -m benchmarks.python_job SERVERS TOPIC SCHEMA FOLDER``. A file per partition, snappy.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

COLUMNS = [
    {"name": "_kafka_topic", "type": "string"},
    {"name": "_kafka_partition", "type": "int"},
    {"name": "_kafka_offset", "type": "long"},
    {"name": "_kafka_timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "_kbq_epoch", "type": "long"},
    {"name": "event_date", "type": {"type": "int", "logicalType": "date"}},
]
PREFIX, BLOCK = 5, 10_000


class Partition:
    """Buffered records of one partition, and its file."""

    def __init__(self, folder: Path, number: int, schema: dict[str, Any]) -> None:
        self._reads: Any = fastavro.parse_schema(schema)
        writes = {**schema, "fields": [*schema["fields"], *COLUMNS]}
        self._file = (folder / f"{number}.avro").open("wb")
        self._writer: Any = fastavro.write.Writer(
            self._file, writes, codec="snappy", sync_interval=256 * 1024
        )

    def add(self, message: Message) -> None:
        value, timestamp = message.value(), message.timestamp()[1]
        assert isinstance(value, bytes)
        record: Any = fastavro.schemaless_reader(io.BytesIO(value[PREFIX:]), self._reads, None)
        record |= {
            "_kafka_topic": message.topic(),
            "_kafka_partition": message.partition(),
            "_kafka_offset": message.offset(),
            "_kafka_timestamp": timestamp,
            "_kbq_epoch": 1,
            "event_date": record["ts"].date(),
        }
        self._writer.write(record)

    def close(self) -> None:
        self._writer.flush()
        self._file.close()


def main(servers: str, topic: str, schema: str, folder: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    numbers = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    partitions = {number: Partition(Path(folder), number, json.loads(schema)) for number in numbers}
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
    at_end: set[int | None] = set()
    while len(at_end) < len(numbers):
        for message in consumer.consume(BLOCK, 1.0):
            error = message.error()
            if error is None:
                partitions[message.partition() or 0].add(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                sys.exit(str(error))
    for partition in partitions.values():
        partition.close()
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
