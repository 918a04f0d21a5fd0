"""Done files: one empty object per staged file. Its name states what is committed (PROTOCOL E5).

    done/shop.orders.v1.0.sales.orders.17.4200.4999.done           the name that KBQ writes
    done/shop.orders.v1.0.sales.orders.4200.4999.done              the short form, read by `kbq bootstrap` only

The base names are those of Kafka BigQuery Express. A done file is derived from the commit and is only a hint: the
commit decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.names import (
    DONE,
    MAX_BASE_NAME,
    TableReference,
    check_topic,
    checked_length,
    known_partition,
    known_table,
    parse_number,
    unparsable,
)
from kbq_assets.core.protocol.offsets import TopicPartition

#: The largest partition or schema id, and the largest offset, that must fit into a file name.
_LARGEST_ID: Final = 2**31 - 1
_LARGEST_OFFSET: Final = 2**63 - 1


def done_path(staged_path: str, until: int) -> str:
    """The path of a staged file's done file, found without parsing. ``until`` is the position after the last one."""
    base = staged_path.rpartition("/")[2].removesuffix(".avro")
    return f"{DONE}{base}.{until - 1}.done"


@dataclass(frozen=True)
class DoneFileName:
    """``<topic>.<partition>.<dataset>.<table>[.<schemaId>].<firstOffset>.<lastOffset>.done`` in ``done/``.

    A done file promises that all records of the partition up to ``last_offset`` with this table and schema id are
    committed. ``schema_id`` is None in the short bootstrap form.
    """

    topic_partition: TopicPartition
    table: TableReference
    schema_id: int | None
    first_offset: int
    last_offset: int

    def format(self) -> str:
        """The path below the store's root. Raises InvalidName if it is too long."""
        tp = self.topic_partition
        schema = "" if self.schema_id is None else f".{self.schema_id}"
        base = f"{tp.topic}.{tp.partition}.{self.table}{schema}.{self.first_offset}.{self.last_offset}.done"
        return f"{DONE}{checked_length(base)}"

    @classmethod
    def parse(cls, path: str) -> DoneFileName:
        """Parse the full form. Raises InvalidName."""
        parts = path.removeprefix(DONE).rsplit(".", 7)
        if len(parts) != 8 or parts[-1] != "done":
            raise unparsable(path, "<topic>.<partition>.<dataset>.<table>.<schemaId>.<first>.<last>.done")
        topic, partition, dataset, table, schema_id, first, last, _ = parts
        return cls(
            known_partition(topic, parse_number(partition, path)),
            known_table(dataset, table),
            parse_number(schema_id, path),
            *_ordered(parse_number(first, path), parse_number(last, path), path),
        )

    @classmethod
    def parse_short(cls, path: str, known_topics: frozenset[str]) -> DoneFileName:
        """Parse the short form. Raises InvalidName unless the topic is known and the table is not a number. Without
        these restrictions, `t.0.d.7.1.2.done` could be either form.
        """
        parts = path.removeprefix(DONE).rsplit(".", 6)
        if len(parts) != 7 or parts[-1] != "done" or parts[0] not in known_topics or parts[3].isdigit():
            raise unparsable(
                path, "<topic>.<partition>.<dataset>.<table>.<first>.<last>.done of a known topic"
            )
        topic, partition, dataset, table, first, last, _ = parts
        return cls(
            TopicPartition(check_topic(topic), parse_number(partition, path)),
            TableReference(dataset, table),
            None,
            *_ordered(parse_number(first, path), parse_number(last, path), path),
        )

    @classmethod
    def parse_bootstrap(cls, path: str, known_topics: frozenset[str]) -> DoneFileName:
        """Parse either form. No path has both forms, because the schema id of one would be the table of the other.
        Raises InvalidName."""
        try:
            return cls.parse(path)
        except InvalidName:
            return cls.parse_short(path, known_topics)


def check_fits(topic: str, table: TableReference) -> TableReference:
    """Return ``table`` if its file names stay short enough even with the largest offsets. Raises InvalidName. Check
    this before anything is committed: a done file's name is longer than its staged file's, and both grow with the
    offsets.
    """
    partition = TopicPartition(topic, _LARGEST_ID)
    longest = DoneFileName(partition, table, _LARGEST_ID, _LARGEST_OFFSET, _LARGEST_OFFSET)
    try:
        longest.format()
    except InvalidName as error:
        raise InvalidName(
            f"the names of {topic}'s files for table {table} can grow beyond {MAX_BASE_NAME} bytes",
            next_step="give the topic a shorter table or dataset (options `table` and `dataset`)",
        ) from error
    return table


def _ordered(first: int, last: int, path: str) -> tuple[int, int]:
    if first > last:
        raise unparsable(path, "first offset <= last offset")
    return first, last
