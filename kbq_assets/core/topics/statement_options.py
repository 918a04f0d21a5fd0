"""The options of tables that are loaded by statements."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.statements.rules import (
    APPEND,
    DELETE_INSERT,
    INSERT_NEW,
    MARK,
    PARK,
    REMOVE,
    SCD2,
    SNAPSHOT,
    SQL,
    TIMESTAMP,
    UPSERT,
    StatementRule,
)
from kbq_assets.core.statements.templates import check_sql
from kbq_assets.core.topics.declaration import option
from kbq_assets.core.topics.key_options import KeyOptions
from kbq_assets.core.topics.option_types import PATH, PATHS, OptionType, choice, whole

_KAFKA_KEY, _DECODED_KEY = "_kafka_key", "_key"
_EXAMPLES: Final = {
    "sql": "sql=<its text>, in a catalog entry",
    "key": "key=<columns>, such as key=_kafka_key",
    "version": "version=<a column that increases>",
}


#: The options that each kind accepts, and those that it requires.
_TAKES: Final[Mapping[str, tuple[str, ...]]] = {
    APPEND: (),
    UPSERT: ("key", "deletes", "tie", "bytes_per_day"),
    INSERT_NEW: ("key", "within_days", "bytes_per_day"),
    DELETE_INSERT: ("key", "version", "bytes_per_day"),
    SNAPSHOT: ("version", "bytes_per_day"),
    SQL: ("sql", "bytes_per_day"),
    SCD2: ("key", "version", "bytes_per_day"),
}
_NEEDS: Final = ("key", "sql", "version")
_OPTIONAL: Final = ((SCD2, "version"),)


def _sql(name: str, text: str) -> str:
    if text:
        check_sql(text)
    return text


@dataclass(frozen=True)
class StatementOptions:
    """How batches are applied to a table."""

    kind: str = option(
        APPEND,
        choice(*_TAKES),
        "`append`: a row per record; all others run statements, which BigQuery bills: `upsert`: "
        "[the newest record of each key](statements.md); `insert_new`: "
        "[records whose key is new](statements.md#new-records-only); `delete_insert`, `snapshot`: "
        "[the newest version](statements.md#the-newest-version) of each key, or of the whole table; `sql`: "
        "[SQL of your own](statements.md#sql-of-your-own); `scd2`: [every record, with the times between which it is "
        "the last one](statements.md#history)",
        name="load",
        place="loading.load",
    )
    key: tuple[str, ...] = option(
        "",
        PATHS,
        "for `load=upsert`, `insert_new`, `delete_insert` and `scd2`: the columns, such as `a,b.c`, that identify a "
        "row, or rows that belong together; `_kafka_key`, with `keys=true`, is the key's raw bytes",
        place="loading.key",
    )
    version: str = option(
        "",
        PATH,
        "for `load=delete_insert` and `snapshot`: the column whose highest value marks the newest rows; for `scd2`: "
        "the TIMESTAMP from which a row is valid, by default Kafka's time",
        shown_default="none",
        place="loading.version",
    )
    within_days: int = option(
        "0",
        whole(),
        "for `load=insert_new`: only rows with an event date at most this many days away make a key known; 0: all "
        "rows do",
        place="loading.within_days",
    )
    sql: str = option(
        "",
        OptionType("string", _sql),
        "for `load=sql`: the text, in a catalog entry or in a file `apply.sql` next to it, with `{{ table }}`, `{{ "
        "batch }}` and `{{ columns }}`",
        shown_default="none",
        place="loading.sql",
    )
    deletes: str = option(
        REMOVE,
        choice(REMOVE, MARK),
        "for `load=upsert`: a deletion removes its row, or marks it in the column `_kbq_deleted`",
        place="loading.deletes",
    )
    tie: str = option(
        PARK,
        choice(PARK, TIMESTAMP),
        "for `load=upsert`: `park`: a key in two partitions parks the table; `timestamp`: for every key, the highest "
        "Kafka time wins instead of the highest offset",
        place="loading.tie",
    )
    bytes_per_day: int = option(
        "0",
        whole(),
        "the most bytes that BigQuery may bill for the table's statements per day (UTC), by a dry run; a batch that "
        "would exceed it [waits](statements.md#bytes-that-are-billed); 0: no limit; DuckDB bills nothing",
        place="loading.bytes_per_day",
    )

    @property
    def rule(self) -> StatementRule:
        """The load rule of the topic's tables."""
        return StatementRule(
            self.kind, self.key, self.deletes, self.tie, self.version, self.within_days, self.sql
        )

    def rule_with(self, tombstones: str) -> StatementRule:
        """The load rule. If the topic has tombstone rows, a history marks deletions."""
        marks = self.kind == SCD2 and tombstones == "row"
        return dataclasses.replace(self.rule, deletes=MARK) if marks else self.rule

    @property
    def deletes_by_tombstones(self) -> bool:
        """Whether a tombstone row ends or deletes other rows."""
        return self.kind in (UPSERT, SCD2)

    def check(self, keys: KeyOptions, tombstones: str, requires_filter: bool) -> None:
        """Raise ConfigurationError for options that contradict others."""
        self._check_own()
        if self.kind in (APPEND, SQL):
            return
        roots = {path.partition(".")[0] for path in self.key}
        if _KAFKA_KEY in roots and not keys.as_bytes:
            raise ConfigurationError("key=_kafka_key: the table has no such column", next_step="keys=true")
        if _DECODED_KEY in roots and not keys.are_decoded:
            raise ConfigurationError("key=_key: the table has no such column", next_step="key_format=avro")
        if keys.format in ("json", "text") and any(path.startswith(f"{_DECODED_KEY}.") for path in self.key):
            raise ConfigurationError(
                f"key={','.join(self.key)}: with key_format={keys.format}, _key has no fields",
                next_step="key=_kafka_key with keys=true, or key_format=avro if the keys are",
            )
        if tombstones == "row" and not self.deletes_by_tombstones:
            raise ConfigurationError(
                f"load={self.kind} cannot use tombstones: they are neither rows nor deletions",
                next_step="tombstones=skip, or load=upsert or scd2",
            )
        if tombstones == "row" and roots - {_KAFKA_KEY, _DECODED_KEY}:
            raise ConfigurationError(
                f"key={','.join(self.key)}: a tombstone has only its Kafka key, so it would delete nothing",
                next_step="key=_kafka_key, or key=_key.<field> with key_format",
            )
        if requires_filter:
            raise ConfigurationError(
                f"load={self.kind} reads the whole table, but require_partition_filter=true forbids that",
                next_step="require_partition_filter=false",
            )

    def _check_own(self) -> None:
        """Raise ConfigurationError for an option that the kind requires but lacks, or does not accept."""
        for name in _NEEDS:
            is_needed = name in _TAKES[self.kind] and (self.kind, name) not in _OPTIONAL
            if is_needed and not getattr(self, name):
                raise ConfigurationError(f"load={self.kind}: no {name}", next_step=_EXAMPLES[name])
        default = StatementOptions()
        given = (
            each.name for each in dataclasses.fields(self) if each.name not in ("kind", *_TAKES[self.kind])
        )
        for name in given:
            if getattr(self, name) != getattr(default, name):
                takers = [kind for kind, taken in _TAKES.items() if name in taken]
                raise ConfigurationError(
                    f"{name}: load={self.kind} does not use it",
                    next_step=f"leave it out, or load={' or '.join(takers)}",
                )

    def check_order(self, order: str) -> None:
        """Raise ConfigurationError if batches across schemas would mix tombstones with other records."""
        if self.deletes_by_tombstones:
            raise ConfigurationError(
                f"order={order}: a batch would mix tombstones with other records, which load={self.kind} cannot tell "
                "apart",
                next_step="order=none, or tombstones=skip",
            )

    def check_changes(self, order: str, tombstones: str) -> None:
        """Raise ConfigurationError for options under which change events cannot be applied to the table."""
        if self.kind == SQL:
            return
        if self.kind != UPSERT:
            raise ConfigurationError(
                f"load={self.kind} would treat change events as rows and ignore deletions",
                next_step="load=upsert, or load=append",
            )
        if order == "none":
            raise ConfigurationError(
                f"load={self.kind} must apply change events in order: an older one may have values that a newer one "
                "lacks",
                next_step="order=offset",
            )
        if {path.partition(".")[0] for path in self.key} - {_KAFKA_KEY, _DECODED_KEY}:
            raise ConfigurationError(
                f"key={','.join(self.key)}: only the Kafka key always identifies the deleted row",
                next_step="key=_key.<field> with key_format, or key=_kafka_key with keys=true",
            )
        if tombstones == "row":
            raise ConfigurationError(
                "tombstones=row: the event before a tombstone already deletes the row",
                next_step="tombstones=skip",
            )
