"""All settings of one topic, and the checks across their parts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.topics.check_options import CheckOptions
from kbq_assets.core.topics.declaration import Option, declared_in, text_of
from kbq_assets.core.topics.destination_options import DestinationOptions
from kbq_assets.core.topics.destinations import check_exposure
from kbq_assets.core.topics.key_options import KeyOptions
from kbq_assets.core.topics.lake_options import LakeOptions
from kbq_assets.core.topics.options import (
    ExtractionOptions,
    OwnershipOptions,
    PrivacyOptions,
    RecordOptions,
)
from kbq_assets.core.topics.ordering_options import HOUR, NONE, TABLE, OrderingOptions
from kbq_assets.core.topics.personal import HEADERS, KEY
from kbq_assets.core.topics.statement_options import StatementOptions
from kbq_assets.core.topics.wait_options import WaitOptions


@dataclass(frozen=True)
class TopicSettings:
    """The options of one topic. Raises ConfigurationError for options that contradict each other."""

    destination: DestinationOptions = field(default_factory=DestinationOptions)
    ownership: OwnershipOptions = field(default_factory=OwnershipOptions)
    records: RecordOptions = field(default_factory=RecordOptions)
    extraction: ExtractionOptions = field(default_factory=ExtractionOptions)
    checks: CheckOptions = field(default_factory=CheckOptions)
    privacy: PrivacyOptions = field(default_factory=PrivacyOptions)
    keys: KeyOptions = field(default_factory=KeyOptions)
    ordering: OrderingOptions = field(default_factory=OrderingOptions)
    statement: StatementOptions = field(default_factory=StatementOptions)
    waits: WaitOptions = field(default_factory=WaitOptions)
    lake: LakeOptions = field(default_factory=LakeOptions)

    @property
    def error_table(self) -> TableReference:
        """The table of bad records."""
        destination = self.destination
        return TableReference(
            destination.error_dataset or destination.dataset.text, self.ownership.errors_table
        )

    def __post_init__(self) -> None:
        records, limit = self.records, self.extraction.max_bytes
        self._check_personal()
        self._check_framing()
        self.statement.check(self.keys, records.tombstones, self.destination.require_partition_filter)
        is_of_changes = records.format == "debezium"
        if not self.statement.rule.appends and is_of_changes:
            self.statement.check_changes(self.ordering.order, records.tombstones)
        if self.ordering.order != NONE and records.tombstones == "row":
            self.statement.check_order(self.ordering.order)
        if self.ordering.order == HOUR and not self.checks.complete_after_seconds:
            raise ConfigurationError(
                "order=hour waits for complete hours, but complete_after_seconds=0 never completes one",
                next_step="complete_after_seconds=900",
            )
        if self.ordering.late_rows == TABLE and not self.statement.rule.appends:
            raise ConfigurationError(
                "late_rows=table: a statement needs all rows of its keys in one table",
                next_step="load=append",
            )
        self.check_inputs(self.destination.template.inputs)
        if records.format.startswith("json_") and self.destination.route == "record_name":
            raise ConfigurationError("route=record_name: JSON records have no names", next_step="route=topic")
        if records.validate and not records.is_json:
            raise ConfigurationError(
                f"validate=true: records of format={records.format} have no JSON Schema",
                next_step="format=json_schema",
            )
        if 0 < limit < records.max_record_bytes:
            raise ConfigurationError(
                f"max_bytes={limit} is less than max_record_bytes={records.max_record_bytes}: the largest records "
                "would not be read",
                next_step="raise max_bytes, or lower max_record_bytes",
            )

    @classmethod
    def of(cls, **options: object) -> TopicSettings:
        """The default settings with some options changed, as in `with_options`."""
        return cls().with_options(**options)

    def with_options(self, **options: object) -> TopicSettings:
        """The settings with some options changed, by their names in the source list. Values are text or Python values.
        Raises ConfigurationError."""
        parts: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            part, attribute = _PLACES[name]
            parts.setdefault(part, {})[attribute] = OPTIONS[name].type.parse(name, text_of(value))
        return dataclasses.replace(
            self, **{part: dataclasses.replace(getattr(self, part), **found) for part, found in parts.items()}
        )

    def for_topic(self, topic: str) -> TopicSettings:
        """The settings with the topic's placeholders filled into the templates."""
        destination = self.destination.for_topic(topic)
        return self if destination is self.destination else dataclasses.replace(self, destination=destination)

    @property
    def rule(self) -> StatementRule:
        """The load rule of the topic's tables."""
        return self.statement.rule_with(self.records.tombstones)

    def check_inputs(self, inputs: Iterable[str]) -> None:
        """Raise ConfigurationError for inputs that must not, or cannot, choose tables of this topic."""
        check_exposure(inputs, self.privacy.decisions, is_json=self.records.is_json)
        for name in inputs:
            if name.startswith("field.") and self.records.format == "json":
                raise ConfigurationError(
                    f"table: {name}: format=json has one column, without fields",
                    next_step="format=json_columns",
                )
            if name == "record" and self.records.is_json:
                raise ConfigurationError("table: {record}: JSON records have no names", next_step="a field")

    def _check_framing(self) -> None:
        records, framing = self.records, self.records.framing
        avro = ("avro", "debezium")
        formats = {"prefix": (), "single_object": avro}.get(framing, (*avro, "json_schema", "protobuf"))
        if formats and records.format not in formats:
            raise ConfigurationError(
                f"framing={framing}: records of format={records.format} do not refer to a schema this way",
                next_step=f"format={' or '.join(formats)}",
            )
        if framing == "none" and self.keys.format in ("avro", "protobuf"):
            raise ConfigurationError(
                f"key_format={self.keys.format}: framing=none sets no schema for keys",
                next_step="key_format=bytes, json or text",
            )
        if framing == "none" and not _SCHEMA_ID.fullmatch(records.value_schema):
            raise ConfigurationError(
                f"framing=none: value_schema={records.value_schema} is not a schema id",
                next_step="value_schema=<the id in the registry>",
            )

    def _check_personal(self) -> None:
        if not self.privacy.decisions:
            return
        has_key = self.keys.are_stored or self.records.tombstones == "row"
        if has_key and not self.privacy.action(KEY):
            raise ConfigurationError(
                "pii= does not decide about keys", next_step=f"add {KEY}:pseudonym or {KEY}:keep"
            )
        if self.records.headers and not self.privacy.action(HEADERS):
            raise ConfigurationError(
                "pii= does not decide about headers", next_step=f"headers=false, or {HEADERS}:keep"
            )


_SCHEMA_ID: Final = re.compile(r"[0-9]{1,9}")
_PARTS: Final[Mapping[str, type]] = {
    "destination": DestinationOptions,
    "ownership": OwnershipOptions,
    "records": RecordOptions,
    "extraction": ExtractionOptions,
    "checks": CheckOptions,
    "privacy": PrivacyOptions,
    "keys": KeyOptions,
    "ordering": OrderingOptions,
    "statement": StatementOptions,
    "waits": WaitOptions,
    "lake": LakeOptions,
}


def _declared() -> Iterator[tuple[str, str, Option]]:
    for part, kind in _PARTS.items():
        for attribute, each in declared_in(kind, part):
            yield part, attribute, each


#: Every option by its name.
OPTIONS: Final[Mapping[str, Option]] = {each.name: each for _, _, each in _declared()}
#: The part and the attribute of each option.
_PLACES: Final = {each.name: (part, attribute) for part, attribute, each in _declared()}
