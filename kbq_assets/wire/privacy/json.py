"""Rewrites JSON documents without their personal data: replaces fields with a decision, and treats unknown fields by
the policy.

A producer may send anything. If a value's type does not fit its action, the value becomes null, and so does any value
in the place of an object with decisions. Decisions apply to each item of a list. The key `a.b` means the same as the
field `b` of `a`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

from kbq_assets.core.topics.json.inference import Seen
from kbq_assets.core.topics.json.numbers import Number
from kbq_assets.core.topics.personal import HEADERS, KEY, Decision, Pseudonyms
from kbq_assets.wire.json.rows import unique
from kbq_assets.wire.privacy.values import network

#: Messages do not show other keys, because they may be values (an address in a map of addresses).
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class UndecidedField(Exception):
    """A document has a field that has no decision and is in no schema."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


@dataclass
class KnownField:
    """A known field. ``decided``: it, or a field in it, has a decision. ``like`` are places of a schema whose fields
    are also known here, because the field is recursive."""

    decision: Decision | None = None
    fields: dict[str, KnownField] = field(default_factory=dict)
    decided: bool = False
    like: list[Seen] = field(default_factory=list)

    def find(self, key: str) -> KnownField | None:
        """The field of a key. The key may itself be a dotted path: then a decision about the path applies, even if a
        schema declares the key."""
        along = self._find_along(key) if "." in key else None
        if along is not None and along.decided:
            return along
        return self.fields.get(key) or self._find_alike(key) or along

    def _find_along(self, key: str) -> KnownField | None:
        first, _, rest = key.partition(".")
        inner = self.fields.get(first)
        return inner if inner is None or inner.decision is not None else inner.find(rest)

    def _find_alike(self, key: str) -> KnownField | None:
        alike = {id(each): each for seen in self.like for each in seen.alike() if key in each.fields}
        return KnownField(like=[each.fields[key] for each in alike.values()]) if alike else None


@dataclass
class LostValues:
    """The number of values removed from documents without a decision `drop` or `null`: those of unknown fields with
    `pii_others=drop`, and those whose type does not fit their decision."""

    count: int = 0

    def counter(self) -> Callable[[], int]:
        """A function that returns the number of values lost since this call."""
        before = self.count
        return lambda: self.count - before


class JsonRedactor:
    """Rewrites the documents of one topic. ``others`` is the policy for unknown fields: stop, drop or keep."""

    def __init__(
        self,
        decisions: Iterable[Decision],
        pseudonyms: Pseudonyms | None,
        others: str,
        lost: LostValues | None = None,
    ) -> None:
        self.lost = lost or LostValues()
        self.others = others
        self.root = KnownField(decided=True)
        self._pseudonyms = pseudonyms
        for decision in decisions:
            if decision.path not in (KEY, HEADERS):
                self._place(decision)

    def _place(self, decision: Decision) -> None:
        place = self.root
        for name in decision.path.split("."):
            place = place.fields.setdefault(name, KnownField())
            place.decided = True
        place.decision = decision

    def declare(self, seen: Seen) -> None:
        """Add a schema's fields to the known fields. Those without a decision are kept."""
        _declare(self.root, seen)

    def __call__(self, document: object) -> Any:
        """The document without its personal data. Raises UndecidedField if the policy is to stop."""
        if not isinstance(document, dict | list) and self.others == "stop":
            raise UndecidedField("the whole document")
        before = self.lost.count
        try:
            return self._value(document, self.root, "")
        except Exception:
            self.lost.count = before  # the whole record is rejected
            raise

    def _value(self, value: object, place: KnownField, path: str) -> Any:
        if place.decision is not None:
            return self._decided(value, place.decision)
        if isinstance(value, dict):
            return self._object(value, place, path)
        if isinstance(value, list):
            return [self._value(each, place, path) for each in value]
        if place.decided and value is not None:
            self.lost.count += 1
            return None
        return value

    def _object(self, value: Mapping[str, Any], place: KnownField, path: str) -> dict[str, Any]:
        made = {}
        for key, each in value.items():
            known = place.find(key)
            if known is None:
                if self.others == "stop":
                    raise UndecidedField(_shown(path, key))
                if self.others == "keep":
                    made[key] = each
                else:
                    self.lost.count += 1
            elif known.decision is None or known.decision.action != "drop":
                made[key] = self._value(each, known, f"{path}.{key}".lstrip("."))
        return made

    def _decided(self, value: object, decision: Decision) -> Any:
        if decision.action == "keep":
            return value
        if value is None or decision.action == "null":
            return None
        if isinstance(value, list):
            return [self._decided(each, decision) for each in value]
        made = self._made(value, decision)
        self.lost.count += made is None
        return made

    def _made(self, value: object, decision: Decision) -> Any:
        """A value after its decision; None if the decision does not fit the value's type."""
        if decision.action == "truncate":
            is_text = isinstance(value, str) and not isinstance(value, Number)
            return value[: int(decision.argument)] if is_text else None  # type: ignore[index]  # it is text
        if decision.action == "generalise":
            return _generalised(value, decision.argument)
        text = _text(value)
        if text is None or self._pseudonyms is None:
            return None
        return self._pseudonyms.of(decision.context, text.encode())


def _declare(place: KnownField, seen: Seen) -> None:
    if place.decision is not None:
        return
    for key, inner in seen.fields.items():
        along = place.find(key)  # a key with dots may be the path of a decision
        known = along if along is not None and along.decided else place.fields.get(key, KnownField())
        place.fields[key] = known
        _declare(known, inner)
    if seen.item is not None:
        _declare(place, seen.item)
    place.like += seen.again


def _shown(path: str, key: str) -> str:
    where = f" in {path}" if path else ""
    return f"the field {key!r}{where}" if _NAME.fullmatch(key) else f"a field{where} whose name is not a word"


# Values


def _text(value: object) -> str | None:
    """The text to hash for a pseudonym; None for objects."""
    if isinstance(value, Number):
        return repr(float(value)) if set(value) & set(".eE") else str(value)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else None


def _generalised(value: object, argument: str) -> Any:
    if isinstance(value, Number):
        value = float(value)
    if argument.isdigit():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return value // int(argument) * int(argument) if is_number else None  # type: ignore[operator]  # it is one
    if not isinstance(value, str):
        return None
    return network(value) if argument == "ip" else _floored(value, argument)


def _floored(text: str, unit: str) -> str | None:
    """An RFC 3339 date or time with smaller units set to their minimum; in UTC if it has a zone."""
    try:
        if len(text) == len("2025-01-31"):
            return _first_day(date.fromisoformat(text), unit)
        found = datetime.fromisoformat(text)
        found = found.astimezone(UTC) if found.tzinfo else found
    except (ValueError, OverflowError):
        return None
    hour = found.hour if unit == "hour" else 0
    return f"{_first_day(found.date(), unit)}T{hour:02}:00:00" + ("Z" if found.tzinfo else "")


def _first_day(day: date, unit: str) -> str:
    if unit == "year":
        return day.replace(month=1, day=1).isoformat()
    return (day.replace(day=1) if unit == "month" else day).isoformat()


# Documents that stay texts


def parse_exact(text: str) -> Any:
    """Parse a valid document, keeping fractions as written. Raises RepeatedKey, and ValueError for a number of
    thousands of digits."""
    return _DECODER.decode(text)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=unique, parse_float=Number)


def exact_text(value: Any) -> str:
    """The inverse of `parse_exact`, without spaces."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(key)}:{exact_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(exact_text, value)) + "]"
    return value if isinstance(value, Number) else _quoted(value)


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
