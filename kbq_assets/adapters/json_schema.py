"""Validates documents against JSON Schemas with the `jsonschema` crate: drafts 4 to 2020-12, `format` as an annotation.

It fetches nothing, its regular expressions take linear time, and documents that could take too long are rejected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, NoReturn

import jsonschema_rs

from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.topics.json.effort import Effort
from kbq_assets.core.topics.json.numbers import Number, parse_fraction
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.records.reasons import Reason

_MOST_BYTES: Final = 1 << 20
_PATTERNS: Final = jsonschema_rs.RegexOptions(size_limit=1 << 20, dfa_size_limit=1 << 20)
#: A step takes a tenth of a microsecond. A document of any size may take the steps per byte that a plain schema needs.
_MOST_STEPS: Final = 50_000_000
_MOST_STEPS_EACH: Final = 300
#: The crate creates an error of 1.5 kB for each step that fails within alternatives.
_MOST_ERRORS: Final = 50_000
#: Fractions with more digits are validated as floats.
_MOST_DIGITS: Final = 100
_MOST_CHARACTERS: Final = 300


class DocumentCheck:
    """Validates documents against one schema. ``references`` are pairs of name and text. ``is_personal`` keeps the
    document's own names out of messages. Raises UnstageableSchema if the schema cannot be used."""

    def __init__(
        self, schema: str, references: Iterable[tuple[str, str]] = (), *, is_personal: bool = False
    ) -> None:
        self._is_personal = is_personal
        referenced = {name: _parsed(text) for name, text in references}
        document = _parsed(schema)
        self._effort = Effort(document, referenced)
        self._has_alternatives = '"anyOf"' in schema or '"oneOf"' in schema

        def retrieve(uri: str) -> Any:
            # The longest name, because `v2/a.json` also ends with the name `a.json`.
            fitting = (each for each in referenced if uri == each or uri.endswith(f"/{each}"))
            name = max(fitting, key=len, default=None)
            if name is None:
                raise ValueError("KBQ fetches no schemas")
            return referenced[name]

        try:
            self._validator = jsonschema_rs.validator_for(
                document,
                mask="the value",
                pattern_options=_PATTERNS,
                retriever=retrieve,
                validate_formats=False,
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            message = str(error).partition("\n")[0][:_MOST_CHARACTERS]
            raise UnstageableSchema(f"it is not a valid JSON Schema: {message}") from error

    def __call__(self, text: bytes) -> RejectedSchema | None:
        """Why a document is bad; None if it is valid. The text must be valid JSON with numbers in range."""
        steps = self._effort.steps(len(text), text.count(b"[") + text.count(b"{"))
        if steps > _MOST_STEPS:
            steps = self._effort.steps(len(text), _depth(text))
        if steps > _MOST_STEPS and steps > _MOST_STEPS_EACH * len(text):
            return RejectedSchema(Reason.TOO_COMPLEX, Reason.TOO_COMPLEX.message)
        try:
            document = _DECODER.decode(text.decode())
            if self._validator.is_valid(document):
                return None
            if self._has_alternatives and steps > _MOST_ERRORS:
                return RejectedSchema(Reason.VIOLATES_SCHEMA, Reason.VIOLATES_SCHEMA.message)
            self._validator.validate(document)
        except jsonschema_rs.ValidationError as error:
            return RejectedSchema(Reason.VIOLATES_SCHEMA, self._message(error))
        except (
            ValueError,
            RecursionError,
        ):  # an integer of thousands of digits, or nested too deep for the crate
            return RejectedSchema(Reason.TOO_COMPLEX, Reason.TOO_COMPLEX.message)
        return None

    def _message(self, error: jsonschema_rs.ValidationError) -> str:
        """The place and the rule. The crate's own message would contain names from the document, which may be
        personal."""
        rule = _pointer(error.schema_path)
        if self._is_personal:
            return f"the value violates its JSON Schema at {rule}"
        return f"{_pointer(error.instance_path) or 'the value'} violates its JSON Schema at {rule}"


def _pointer(path: Iterable[str | int]) -> str:
    made = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)
    return made if len(made) <= _MOST_CHARACTERS else f"{made[:_MOST_CHARACTERS]}…"


def _parsed(text: str) -> Any:
    if len(text) > _MOST_BYTES:
        raise UnstageableSchema(f"it has more than {_MOST_BYTES >> 20} MB")
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise UnstageableSchema(f"it cannot be read as JSON ({type(error).__name__})") from error
    if not isinstance(found, Mapping | bool):
        raise UnstageableSchema("it is neither an object nor true or false")
    return found


def _number(text: str) -> float | Decimal:
    """A fraction without loss of precision, if it is short enough."""
    found = parse_fraction(text)
    if isinstance(found, Number):
        given = float(text)
        return Decimal(text) if given and math.isfinite(given) and len(text) <= _MOST_DIGITS else given
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_DECODER: Final = json.JSONDecoder(parse_float=_number, parse_constant=_refuse)


_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


def _depth(text: bytes) -> int:
    depth = most = 0
    for found in _BRACKETS.finditer(text):
        first = found[0][:1]
        depth += (first in b"[{") - (first in b"]}")
        most = max(most, depth)
    return most
