"""The columns of documents that a table's statement needs: its key and version.

A value that fits no column goes to the side column, and the row has null instead. With such a row, a key would get a
second row, or a newer version would count as the oldest. So these documents are bad records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbq_assets.core.loading.table_notes import OWN_COLUMNS
from kbq_assets.core.topics.column_names import row_columns
from kbq_assets.core.topics.json.inference import InferredField, InferredSchema, column_name, kind_of
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.wire.json.rows import fits

#: Kinds that keys and versions may have.
_KINDS: Final = frozenset({"BOOL", "INT64", "STRING"})


@dataclass(frozen=True)
class NeededColumn:
    """A column, and the keys that lead to its values in documents."""

    option: str
    path: str
    keys: tuple[str, ...]
    field: InferredField

    @property
    def problem(self) -> str:
        """Why a document without a fitting value is a bad record. It has no value, which may be personal."""
        return f"{self.path} is not {self.field.inferred.kind}, as the column that `{self.option}` names"

    def misfits(self, document: object) -> bool:
        """Whether a document has a value that does not fit. Null and no value fit."""
        found: Any = document
        for key in self.keys:
            if found is None:
                return False
            if not isinstance(found, dict):
                return True
            found = found.get(key)
        return found is not None and not fits(self.field.inferred, found)


@dataclass(frozen=True)
class Needs:
    """The option that names each path of columns, and the style of the table's column names. KBQ's own columns always
    fit."""

    paths: Mapping[str, str]
    style: str

    @classmethod
    def of(cls, settings: TopicSettings) -> Needs:
        statement = settings.statement
        found = {statement.version: "version"} if statement.version else {}
        found |= dict.fromkeys(statement.key, "key")
        own = {path: option for path, option in found.items() if path.partition(".")[0] not in OWN_COLUMNS}
        return cls(own, settings.destination.column_names)

    def columns(self, inferred: InferredSchema) -> tuple[NeededColumn, ...]:
        """The columns at these paths, as far as documents had them."""
        found = ((option, path, _fields(inferred, path, self.style)) for path, option in self.paths.items())
        return tuple(
            NeededColumn(option, path, tuple(each.key for each in fields), fields[-1])
            for option, path, fields in found
            if fields and fields[-1].inferred.kind in _KINDS
        )

    def kinds(self, inferred: InferredSchema, documents: Collection[object]) -> Mapping[tuple[str, ...], str]:
        """For paths without a column, the most frequent kind there that a key may have, by the keys in documents. A
        mixture would become a JSON column for good, which no statement can compare."""
        found: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for path in self.paths:
            if not _fields(inferred, path, self.style):
                for document in documents:
                    keys, value = _at(document, path, self.style)
                    found[keys][kind_of(value)] += 1
        chosen = {
            keys: [kind for kind, _ in seen.most_common() if kind in _KINDS] for keys, seen in found.items()
        }
        return {keys: kinds[0] for keys, kinds in chosen.items() if kinds}


def _at(document: Any, path: str, style: str) -> tuple[tuple[str, ...], Any]:
    """The keys that lead to the value of a column in a document, and the value; None if it has none."""
    keys: list[str] = []
    for level, name in enumerate(path.split("."), 1):
        inner = document if isinstance(document, dict) else {}
        taken = set[str]()
        columns = {key: column_name(key, taken, level, style) for key in inner}
        names = row_columns(columns.values(), style)
        key = next((key for key, column in columns.items() if names.get(column, column) == name), None)
        if key is None:
            return (), None
        keys.append(key)
        document = document[key]
    return tuple(keys), document


def _fields(inferred: InferredSchema, path: str, style: str) -> list[InferredField]:
    """The fields from the document down to a column; none if the path leads to no column."""
    found: list[InferredField] = []
    record = inferred.root
    for name in path.split("."):
        names = row_columns((each.column for each in record.fields), style)
        field = next((each for each in record.fields if names.get(each.column, each.column) == name), None)
        if field is None:
            return []
        found.append(field)
        record = field.inferred
    return found
