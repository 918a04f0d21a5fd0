"""Names of staged files and state objects: the only code that formats and parses them.

Names are parsed from the right: a topic may contain dots, a dataset or a table may not.

    staging/3-9f2c…/shop.orders.v1.0.sales.orders.17.4200.avro     StagedFileName
    done/….done                                                    see done_files.py
    commits/shop.orders.v1.json, commits/shop.orders.v1@1.json     shards 0 and 1 of a topic's commit
    manifests/shop.orders.v1@1/1764-9f2c….json                     ManifestName, of shard 1
    tables/sales.orders.json                                       a table's load state
    tables/lake/sales.orders.json                                  the same for the warehouse `lake`, not the first

The base names are those of Kafka BigQuery Express (PROTOCOL, Objects).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.offsets import TopicPartition

STAGING: Final = "staging/"
DONE: Final = "done/"
COMMITS: Final = "commits/"
MANIFESTS: Final = "manifests/"
TABLES: Final = "tables/"
#: Below the tables' states, so that the same permissions cover it. No dataset begins with an "@".
AUDIT: Final = f"{TABLES}@audit/"
BACKLOG: Final = "backlog/"
QUARANTINE: Final = "quarantine/"
NOTICES: Final = "notices/"
COMPLETENESS: Final = "completeness/"
SCHEMAS: Final = "schemas/"
FILE_BATCHES: Final = "filebatches/"
TOPIC_REGISTRY: Final = "commits/_topics.json"
TABLE_REGISTRY: Final = "tables/_tables.json"

#: The first warehouse: its state has no folder of its own (PROTOCOL, Several warehouses).
FIRST_WAREHOUSE: Final = ""
#: Folders with a subfolder for each other warehouse, and the subfolder's prefix. The "@" is needed where a dataset may
#: have the name of a warehouse.
_PER_WAREHOUSE: Final = {TABLES: "", BACKLOG: "", QUARANTINE: "", COMPLETENESS: "@"}
#: Cannot match `<dataset>.<table>` or `<epoch>-<attempt>`, which begin the other paths in these folders.
_WAREHOUSE: Final = re.compile(r"[a-z][a-z0-9_]{0,29}")

#: Partitions per commit object (PROTOCOL, Objects).
PARTITIONS_PER_SHARD: Final = 64
#: The longest base name that local file systems allow, in bytes. GCS allows 1,024 for the whole path.
MAX_BASE_NAME: Final = 255

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")  # org.apache.kafka.common.internals.Topic
_DATASET = re.compile(r"[A-Za-z0-9_]{1,200}")  # BigQuery allows 1,024, but it must fit into a file name
_TABLE = re.compile(r"[A-Za-z0-9_-]{1,200}")
#: A dataset's table that lists the complete hours of its other tables. No topic's table may have this name.
COMPLETENESS_TABLE: Final = "_kbq_completeness"
#: Names that no topic may have: Kafka excludes "." and "..", and `_topics` is the registry's file name.
_RESERVED_TOPICS: Final = frozenset({".", "..", "_topics"})


def check_topic(topic: str) -> str:
    """Return ``topic``, or raise InvalidName."""
    if not _TOPIC.fullmatch(topic) or topic in _RESERVED_TOPICS:
        raise InvalidName(
            f"topic name {topic!r} cannot be part of file names",
            next_step="letters, digits, '.', '_' and '-', at most 249; not '.', '..' or '_topics'",
        )
    return topic


@dataclass(frozen=True, order=True)
class TableReference:
    """A table of the warehouse: ``dataset.table``."""

    dataset: str
    table: str

    def __post_init__(self) -> None:
        if not _DATASET.fullmatch(self.dataset) or not _TABLE.fullmatch(self.table):
            raise InvalidName(
                f"table name {self.dataset!r}.{self.table!r} is not allowed",
                next_step="dataset: letters, digits, '_'; table: also '-'; at most 200 characters each",
            )

    @classmethod
    def parse(cls, text: str) -> TableReference:
        """Parse ``dataset.table``. Raises InvalidName."""
        dataset, dot, table = text.partition(".")
        if not dot:
            raise InvalidName(f"{text!r} is not a table", next_step="write dataset.table")
        return known_table(dataset, table)

    def __str__(self) -> str:
        return f"{self.dataset}.{self.table}"


@dataclass(frozen=True)
class StagedFileName:
    """``<topic>.<partition>.<dataset>.<table>.<schemaId>.<firstOffset>.avro`` in ``staging/<epoch>-<attempt>/``."""

    topic_partition: TopicPartition
    table: TableReference
    schema_id: int
    first_offset: int
    epoch: int
    attempt: str

    def format(self) -> str:
        """The path below the store's root. Raises InvalidName if it is too long."""
        tp = self.topic_partition
        base = f"{tp.topic}.{tp.partition}.{self.table}.{self.schema_id}.{self.first_offset}.avro"
        return f"{STAGING}{self.epoch}-{self.attempt}/{checked_length(base)}"

    @property
    def mark_key(self) -> str:
        """The key in a table's state of the mark that covers this file."""
        tp = self.topic_partition
        return f"{tp.topic}/{tp.partition}/{self.epoch}/{self.schema_id}"

    @classmethod
    def parse(cls, path: str) -> StagedFileName:
        """Parse a path below the store's root. Raises InvalidName."""
        folder, _, base = path.removeprefix(STAGING).partition("/")
        epoch, dash, attempt = folder.partition("-")
        parts = base.rsplit(".", 6)
        if not (path.startswith(STAGING) and dash and attempt) or len(parts) != 7 or parts[-1] != "avro":
            raise unparsable(
                path, "staging/<epoch>-<attempt>/<topic>.<partition>.<dataset>.<table>.<id>.<first>.avro"
            )
        topic, partition, dataset, table, schema_id, first, _ = parts
        return cls(
            known_partition(topic, parse_number(partition, path)),
            known_table(dataset, table),
            parse_number(schema_id, path),
            parse_number(first, path),
            parse_number(epoch, path),
            attempt,
        )


@functools.lru_cache(maxsize=16384)
def known_partition(topic: str, partition: int) -> TopicPartition:
    """A partition, as one value that all its file names share."""
    return TopicPartition(check_topic(topic), partition)


@functools.lru_cache(maxsize=4096)
def known_table(dataset: str, table: str) -> TableReference:
    """A table, as one value that all its file names share."""
    return TableReference(dataset, table)


def commit_path(topic: str, shard: int = 0) -> str:
    """Path of a shard of a topic's commit. Topic names have no '@', so shards cannot collide."""
    return f"{COMMITS}{check_topic(topic)}{f'@{shard}' if shard else ''}.json"


def commit_path_of(tp: TopicPartition) -> str:
    """Path of the commit of a partition."""
    return commit_path(tp.topic, shard_of(tp.partition))


def commit_topic(path: str) -> str:
    """The topic in a commit's path."""
    return path.removeprefix(COMMITS).removesuffix(".json").partition("@")[0]


def manifest_prefix(topic: str, shard: int) -> str:
    """Folder of the manifests of a shard of a topic's commit."""
    return MANIFESTS + commit_path(topic, shard).removeprefix(COMMITS).removesuffix(".json") + "/"


@dataclass(frozen=True)
class ManifestName:
    """``manifests/<topic>[@<shard>]/<generation>-<random>.json``: the generation of the head that its swap replaces."""

    topic: str
    shard: int
    generation: int
    random: str

    @property
    def base(self) -> str:
        return f"{self.generation}-{self.random}"

    def format(self) -> str:
        """The path below the store's root."""
        return f"{manifest_prefix(self.topic, self.shard)}{self.base}.json"

    @classmethod
    def parse(cls, path: str) -> ManifestName:
        """Parse a path below the store's root. Raises InvalidName."""
        folder, _, base = path.removeprefix(MANIFESTS).partition("/")
        topic, at, shard = folder.partition("@")
        generation, dash, random = base.removesuffix(".json").partition("-")
        if not (path.startswith(MANIFESTS) and base.endswith(".json") and dash and random):
            raise unparsable(path, "manifests/<topic>[@<shard>]/<generation>-<random>.json")
        number = parse_number(shard, path) if at else 0
        return cls(check_topic(topic), number, parse_number(generation, path), random)


def table_state_path(table: TableReference) -> str:
    """Path of a table's load state."""
    return f"{TABLES}{table}.json"


def audit_path(table: TableReference, first: int) -> str:
    """Path of an archive of decisions about a table's batches that begins with decision number ``first``."""
    return f"{AUDIT}{table}/{first}.json"


def marker_path(name: str) -> str:
    """Path of a marker for which ordered tables wait (`hold_until`). The process that loads the history creates it."""
    return f"markers/{name}"


def backlog_prefix(table: TableReference) -> str:
    """Prefix of a table's backlog chunks (PROTOCOL E7)."""
    return f"{BACKLOG}{table}/"


def backlog_path(
    table: TableReference, epoch: int, topic_partition: TopicPartition, first_offset: int
) -> str:
    """Path of the chunk of one window. It is deterministic, so a second write changes nothing."""
    tp = topic_partition
    return (
        f"{backlog_prefix(table)}{checked_length(f'{epoch}-{tp.topic}.{tp.partition}.{first_offset}.json')}"
    )


def schema_path(fingerprint: str) -> str:
    """Path of a staged schema. It is content-addressed, and written before the first file that uses it."""
    return f"{SCHEMAS}{fingerprint}.json"


def quarantine_path(staged: str) -> str:
    """Path of the copy of a bad staged file (PROTOCOL L5)."""
    return QUARANTINE + staged.removeprefix(STAGING)


def staged_path(quarantined: str) -> str:
    """Path of the staged file that this one copies."""
    return STAGING + quarantined.removeprefix(QUARANTINE)


def check_warehouse(name: str) -> str:
    """Return the name of a warehouse besides the first, or raise InvalidName."""
    if not _WAREHOUSE.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot be the name of a warehouse",
            next_step="a lowercase letter, then letters, digits and '_'; at most 30",
        )
    return name


def warehouse_path(path: str, warehouse: str) -> str:
    """The path in another warehouse that corresponds to a path of the first. Paths that all warehouses share do not
    change."""
    folder = path[: path.find("/") + 1]
    if warehouse == FIRST_WAREHOUSE or folder not in _PER_WAREHOUSE:
        return path
    return f"{folder}{_PER_WAREHOUSE[folder]}{warehouse}/{path.removeprefix(folder)}"


def own_path(path: str, warehouse: str) -> str | None:
    """The reverse of `warehouse_path`; None for a path of another warehouse."""
    folder, rest = path[: path.find("/") + 1], path[path.find("/") + 1 :]
    if folder not in _PER_WAREHOUSE:
        return path
    first, slash, inner = rest.partition("/")
    mark = _PER_WAREHOUSE[folder]
    name = first.removeprefix(mark) if slash and first.startswith(mark) else FIRST_WAREHOUSE
    if not _WAREHOUSE.fullmatch(name):
        return path if warehouse == FIRST_WAREHOUSE else None
    return f"{folder}{inner}" if name == warehouse else None


def shard_of(partition: int) -> int:
    """The shard of a topic's commit that holds this partition."""
    return partition // PARTITIONS_PER_SHARD


def sanitise_table(text: str) -> str:
    """A table name from a topic or record name. Characters that are not allowed become '_'. Never the name of KBQ's own
    table."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)[:200] or "_"
    return f"{name}_" if name.lower() == COMPLETENESS_TABLE else name


def checked_length(base: str) -> str:
    """Return a base name that a file system can hold, or raise InvalidName."""
    if len(base.encode()) > MAX_BASE_NAME:
        raise InvalidName(
            f"file name of {len(base)} bytes is over {MAX_BASE_NAME}: {base}",
            next_step="shorten the topic, dataset or table name",
        )
    return base


def parse_number(text: str, path: str) -> int:
    """Parse a whole number without leading zeros, found in ``path``. Raises InvalidName."""
    # 2**63 - 1 has 19 digits.
    if text.isdecimal() and text.isascii() and len(text) <= 19 and (text[0] != "0" or text == "0"):
        number = int(text)
        if number <= 2**63 - 1:
            return number
    raise unparsable(path, f"a whole number instead of {text!r}")


def unparsable(path: str, wanted: str) -> InvalidName:
    """The error for a path that does not have the ``wanted`` form."""
    return InvalidName(f"{path!r} is not a name that KBQ writes", next_step=f"expected {wanted}")
