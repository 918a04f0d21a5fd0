"""An independent reader, without KBQ's code. It compares the committed records in the broker with the tables."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb
import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

_SECONDS: Final = 300.0
_ERRORS: Final = "kbq_errors"


class Place(NamedTuple):
    """A record's coordinates. Two topics may feed one table: the topic is one of them."""

    topic: str
    partition: int
    offset: int


class Row(NamedTuple):
    """A record in its table. Fields that its schema does not have are null."""

    table: str
    key: bytes | None
    fields: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Count:
    """The verdict. ``strange`` rows have no record at their place."""

    records: int
    rows: int
    errors: int
    skipped: int
    lost: int
    doubled: int
    altered: int
    strange: int
    examples: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every record is there once, as it was sent."""
        return not (self.lost or self.doubled or self.altered or self.strange)


def served(
    bootstrap_servers: str, topics: Mapping[str, int]
) -> dict[Place, tuple[bytes | None, bytes | None]]:
    """Key and value of every record that the broker serves as committed. ``topics`` are partitions by name."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "independent",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    partitions = [(topic, number) for topic, count in topics.items() for number in range(count)]
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in partitions])
    open_ends, found = set(partitions), {}
    while open_ends:
        message = consumer.poll(_SECONDS)
        if message is None:
            raise RuntimeError(f"the broker does not serve {open_ends}")
        error = message.error()
        place = Place(str(message.topic()), int(message.partition() or 0), int(message.offset() or 0))
        if error is None:
            found[place] = (message.key(), message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            open_ends.discard(place[:2])
        else:
            raise RuntimeError(str(error))
    consumer.close()
    return found


def expected(
    records: Mapping[Place, tuple[bytes | None, bytes | None]], schemas: Mapping[int, Mapping[str, Any]]
) -> dict[Place, Row | None]:
    """The row of each record; None for one that becomes an error row. Tombstones become nothing."""
    return {
        place: _row(place, key, value, schemas)
        for place, (key, value) in records.items()
        if value is not None
    }


def _row(
    place: Place, key: bytes | None, value: bytes, schemas: Mapping[int, Mapping[str, Any]]
) -> Row | None:
    try:
        if place.topic.startswith("documents."):
            document = json.loads(value)
            return Row("documents", key, _sorted(document)) if isinstance(document, dict) else None
        schema = schemas[int.from_bytes(value[1:5])] if len(value) >= 5 and value[0] == 0 else None
        if schema is None:
            return None
        stream = io.BytesIO(value[5:])
        fields: Any = fastavro.schemaless_reader(stream, fastavro.parse_schema(dict(schema)), None)
        table = "plain" if place.topic.startswith("plain.") else str(schema["name"])
        return Row(table, key, _sorted(fields)) if not stream.read(1) else None
    except (ValueError, KeyError, EOFError, IndexError):
        return None


def stored(warehouse: Path) -> list[tuple[Place, Row | None]]:
    """All rows of all tables; None stands for an error row."""
    found: list[tuple[Place, Row | None]] = []
    with duckdb.connect(str(warehouse), read_only=True) as database:
        names = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'torture'"
        for (table,) in database.execute(names).fetchall():
            if table.startswith("_kbq"):
                continue
            cursor = database.execute(f'SELECT * FROM torture."{table}"')
            columns = [column[0] for column in cursor.description or ()]
            for values in cursor.fetchall():
                row = dict(zip(columns, values, strict=True))
                place = Place(row["_kafka_topic"], row["_kafka_partition"], row["_kafka_offset"])
                found.append((place, None if table == _ERRORS else _stored_row(table, row)))
    return found


def _stored_row(table: str, row: Mapping[str, Any]) -> Row:
    own = {name: value for name, value in row.items() if not name.startswith(("_", "event_date"))}
    return Row(table, row["_kafka_key"], _sorted(own))


def _sorted(fields: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Fields with a value, by name."""
    return tuple(sorted((name, value) for name, value in fields.items() if value is not None))


def compare(
    wanted: Mapping[Place, Row | None], found: Iterable[tuple[Place, Row | None]], records: int = 0
) -> Count:
    """The verdict on rows that were found. ``records`` counts skipped ones too."""
    rows = list(found)
    times = Counter(place for place, _ in rows)
    altered = [(place, row) for place, row in rows if place in wanted and wanted[place] != row]
    lost = [place for place in wanted if place not in times]
    strange = [place for place in times if place not in wanted]
    doubled = [place for place, number in times.items() if number > 1]
    kinds = (("lost", lost), ("doubled", doubled), ("altered", altered), ("strange", strange))
    return Count(
        records=records or len(wanted),
        rows=sum(row is not None for row in wanted.values()),
        errors=sum(row is None for row in wanted.values()),
        skipped=records - len(wanted) if records else 0,
        lost=len(lost),
        doubled=len(doubled),
        altered=len(altered),
        strange=len(strange),
        examples=tuple(f"{kind}: {each}" for kind, places in kinds for each in list(places)[:3]),
    )
