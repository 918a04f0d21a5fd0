"""Chooses the table of each record of a topic from templates."""

from __future__ import annotations

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.destinations import Names, Unknown, fill, text_of
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.select import Value

#: Inputs that do not depend on the record's content.
_CONSTANT = ("topic", "record")


class Choice:
    """The choice of tables for one topic. ``inputs`` names the parts of a record's content that it reads. Raises
    ConfigurationError if a template would reveal personal data."""

    def __init__(self, topic: str, settings: TopicSettings) -> None:
        destination = settings.destination
        self._dataset, self._table = destination.dataset, destination.table
        asked = destination.template.inputs
        settings.check_inputs(asked)
        self.inputs = tuple(name for name in asked if name.partition(".")[0] not in _CONSTANT)
        create = destination.unknown_table == "create"
        self._names = Names(topic, destination.dataset.text, destination.tables, create)

    @property
    def fields(self) -> tuple[str, ...]:
        """Dotted paths of the fields that the choice reads."""
        return _of(self.inputs, "field")

    @property
    def needs_headers(self) -> bool:
        """Whether the choice reads any header."""
        return bool(_of(self.inputs, "header"))

    def table(self, record_name: str, values: tuple[Value, ...]) -> TableReference | RejectedSchema:
        """The table for records with these inputs. ``record_name`` is "" for tombstones and JSON."""
        values_of = dict(zip(self.inputs, values, strict=True))
        name = record_name.rpartition(".")[2]
        found = self._filled(name, values_of)
        return RejectedSchema(Reason.UNKNOWN_TABLE, found.why) if isinstance(found, Unknown) else found

    def _filled(self, record_name: str, values_of: dict[str, Value]) -> TableReference | Unknown:
        values = {"record": record_name, **{name: text_of(value) for name, value in values_of.items()}}
        dataset, table = fill(self._dataset, values), fill(self._table, values)
        if isinstance(dataset, Unknown):
            return dataset
        return table if isinstance(table, Unknown) else self._names.table(dataset, table)


def _of(inputs: tuple[str, ...], source: str) -> tuple[str, ...]:
    return tuple(name.partition(".")[2] for name in inputs if name.startswith(f"{source}."))
