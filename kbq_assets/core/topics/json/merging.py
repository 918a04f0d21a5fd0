"""Adds the columns that a replay inferred from documents to those of the live topic (PROTOCOL R3)."""

from __future__ import annotations

from dataclasses import replace

from kbq_assets.core.errors import Refused
from kbq_assets.core.topics.column_names import compared
from kbq_assets.core.topics.json.inference import InferredField, InferredSchema, InferredType


def merged(live: InferredSchema, other: InferredSchema, style: str, *, again: str) -> InferredSchema:
    """The next version of the live schema, with the columns that only ``other`` has; the live schema if there are none.

    Raises Refused if a field has another column or type in ``other``; ``again`` is the next step. ``style`` is that of
    the table's column names.
    """
    root = _record(live.root, other.root, _Place(style, again))
    return live if root == live.root else replace(live, version=live.version + 1, root=root)


class _Place:
    """A field, by the keys that lead to it."""

    def __init__(self, style: str, again: str, path: str = "") -> None:
        self.style, self._again, self._path = style, again, path

    def at(self, key: str) -> _Place:
        return _Place(self.style, self._again, f"{self._path}.{key}" if self._path else key)

    def refusal(self, what: str) -> Refused:
        return Refused(f"field {self._path} {what} in the replay", next_step=self._again)


def _record(live: InferredType, other: InferredType, place: _Place) -> InferredType:
    fields = {each.key: each for each in live.fields}
    owners = {compared(each.column, place.style): each.key for each in live.fields}
    for found in other.fields:
        owner = owners.setdefault(compared(found.column, place.style), found.key)
        if owner != found.key:
            raise place.at(found.key).refusal(f"has the column {found.column} of the field {owner}")
        fields[found.key] = _field(fields.get(found.key, found), found, place.at(found.key))
    return replace(live, fields=tuple(fields.values()))


def _field(live: InferredField, other: InferredField, place: _Place) -> InferredField:
    if live.column != other.column:
        raise place.refusal(f"has the column {live.column}, and {other.column}")
    return replace(live, inferred=_type(live.inferred, other.inferred, place))


def _type(live: InferredType, other: InferredType, place: _Place) -> InferredType:
    if live.kind != other.kind:
        raise place.refusal(f"is {live.kind}, and {other.kind}")
    if live.kind == "RECORD":
        return _record(live, other, place)
    if live.item is not None and other.item is not None:
        return replace(live, item=_type(live.item, other.item, place))
    return live
