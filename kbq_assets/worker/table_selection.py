"""How the records of a topic choose their tables: by a template, or by a package's function."""

from __future__ import annotations

from collections.abc import Callable

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.destinations import Names, PythonRoute, RoutedRecord, Unknown, fill, text_of
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.select import Value

#: Inputs that need no content of the record.
_CONSTANT = ("topic", "record")
#: Most characters of a function's error in error rows.
_MOST_SHOWN = 200


class Choice:
    """A topic's choice. ``inputs`` are the parts of a record's content that it needs. Raises ConfigurationError if a
    function asks for an input that it must not have."""

    def __init__(self, topic: str, settings: TopicSettings, find: Callable[[str], PythonRoute]) -> None:
        self._topic = topic
        self._settings = settings
        destination = settings.destination
        self._dataset, self._table = destination.dataset, destination.table
        self._function = find(destination.route_function) if destination.route_function else None
        asked = destination.template.inputs if self._function is None else self._function.inputs
        settings.check_inputs(asked)
        self.inputs = tuple(name for name in asked if name.partition(".")[0] not in _CONSTANT)
        create = destination.unknown_table == "create"
        self._names = Names(topic, destination.dataset.text, destination.tables, create)

    @property
    def fields(self) -> tuple[str, ...]:
        """Dotted paths of the fields that it needs."""
        return _of(self.inputs, "field")

    @property
    def needs_headers(self) -> bool:
        """Whether it needs any header."""
        return bool(_of(self.inputs, "header"))

    def table(self, record_name: str, values: tuple[Value, ...]) -> TableReference | RejectedSchema:
        """The table of records with these inputs. ``record_name`` is "" for tombstones and JSON."""
        values_of = dict(zip(self.inputs, values, strict=True))
        name = record_name.rpartition(".")[2]
        found = (
            self._filled(name, values_of)
            if self._function is None
            else self._answer(self._function, name, values_of)
        )
        return RejectedSchema(Reason.UNKNOWN_TABLE, found.why) if isinstance(found, Unknown) else found

    def _filled(self, record_name: str, values_of: dict[str, Value]) -> TableReference | Unknown:
        values = {"record": record_name, **{name: text_of(value) for name, value in values_of.items()}}
        dataset, table = fill(self._dataset, values), fill(self._table, values)
        if isinstance(dataset, Unknown):
            return dataset
        return table if isinstance(table, Unknown) else self._names.table(dataset, table)

    def _answer(
        self, route: PythonRoute, record_name: str, values_of: dict[str, Value]
    ) -> TableReference | Unknown | RejectedSchema:
        key = values_of.get("key")
        record = RoutedRecord(
            self._topic,
            record_name,
            key if isinstance(key, bytes) else None,
            {name: _bytes(values_of[f"header.{name}"]) for name in _of(self.inputs, "header")},
            {path: _plain(values_of[f"field.{path}"]) for path in self.fields},
        )
        try:
            answer: object = route(record)
        except Exception as error:
            # A user's code: it may raise anything, and its message may contain personal data.
            message = "" if self._settings.privacy.decisions else f": {error}"[:_MOST_SHOWN]
            return self._failed(f"raised {type(error).__name__}{message}")
        if answer is None:
            return Unknown(f"{self._settings.destination.route} knows no table")
        return (
            self._names.answered(answer)
            if isinstance(answer, str)
            else self._failed(f"gave a {type(answer).__name__}")
        )

    def _failed(self, what: str) -> RejectedSchema:
        return RejectedSchema(Reason.ROUTE_FAILED, f"{self._settings.destination.route} {what}")


def _of(inputs: tuple[str, ...], source: str) -> tuple[str, ...]:
    return tuple(name.partition(".")[2] for name in inputs if name.startswith(f"{source}."))


def _bytes(value: Value) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _plain(value: Value) -> str | int | bool | None:
    return None if isinstance(value, bytes) else value
