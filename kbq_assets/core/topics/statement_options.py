"""The options of tables that a statement changes."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.statements.rules import APPEND, MARK, PARK, REMOVE, TIMESTAMP, UPSERT, StatementRule
from kbq_assets.core.topics.declaration import option
from kbq_assets.core.topics.key_options import KeyOptions
from kbq_assets.core.topics.option_types import PATHS, choice

_KAFKA_KEY, _DECODED_KEY = "_kafka_key", "_key"


@dataclass(frozen=True)
class StatementOptions:
    """How batches change a table."""

    kind: str = option(
        APPEND,
        choice(APPEND, UPSERT),
        "`append`: a row per record; `upsert`: "
        "[the newest record of each key](ordered.md#tables-that-show-the-current-state), by a statement, which "
        "BigQuery bills",
        name="load",
        place="loading.load",
    )
    key: tuple[str, ...] = option(
        "",
        PATHS,
        "`load=upsert`: the columns, `a,b.c`, whose values identify a row; `_kafka_key`, with `keys=true`, is the "
        "key's own bytes",
        place="loading.key",
    )
    deletes: str = option(
        REMOVE,
        choice(REMOVE, MARK),
        "`load=upsert`: a deletion removes its row, or marks it in the column `_kbq_deleted`",
        place="loading.deletes",
    )
    tie: str = option(
        PARK,
        choice(PARK, TIMESTAMP),
        "`load=upsert`: a key in two partitions parks the table; `timestamp`: for every key the highest Kafka time "
        "wins, and not the highest offset",
        place="loading.tie",
    )

    @property
    def rule(self) -> StatementRule:
        """The rule of the topic's tables."""
        return (
            StatementRule()
            if self.kind == APPEND
            else StatementRule(self.kind, self.key, self.deletes, self.tie)
        )

    def check(self, keys: KeyOptions, tombstones: str, requires_filter: bool) -> None:
        """Raises ConfigurationError for options that other ones contradict."""
        if self.kind == APPEND:
            return
        if not self.key:
            raise ConfigurationError(
                f"load={self.kind}: no key", next_step="key=<columns>, such as key=_kafka_key"
            )
        roots = {path.partition(".")[0] for path in self.key}
        if _KAFKA_KEY in roots and not keys.as_bytes:
            raise ConfigurationError("key=_kafka_key: the table has no such column", next_step="keys=true")
        if _DECODED_KEY in roots and not keys.are_decoded:
            raise ConfigurationError("key=_key: the table has no such column", next_step="key_format=avro")
        if tombstones == "row" and roots - {_KAFKA_KEY, _DECODED_KEY}:
            raise ConfigurationError(
                f"key={','.join(self.key)}: a tombstone has nothing but its Kafka key, and would delete nothing",
                next_step="key=_kafka_key, or key=_key.<field> with key_format",
            )
        if requires_filter:
            raise ConfigurationError(
                f"load={self.kind} reads the whole table, and require_partition_filter=true refuses that",
                next_step="require_partition_filter=false",
            )

    def check_changes(self, order: str, tombstones: str) -> None:
        """Raises ConfigurationError for options with which change events cannot be applied to their table."""
        if order == "none":
            raise ConfigurationError(
                f"load={self.kind} applies change events in their order: an older one may have values that a newer "
                "one lacks",
                next_step="order=offset",
            )
        if {path.partition(".")[0] for path in self.key} - {_KAFKA_KEY, _DECODED_KEY}:
            raise ConfigurationError(
                f"key={','.join(self.key)}: the Kafka key tells which row was deleted, even if the event does not",
                next_step="key=_key.<field> with key_format, or key=_kafka_key with keys=true",
            )
        if tombstones == "row":
            raise ConfigurationError(
                "tombstones=row: the event before a tombstone deletes the row", next_step="tombstones=skip"
            )
