"""Context that all files of a window share: origin, format, and the routes of its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from kbq_assets.wire.files.assemble import RecordOrigin
from kbq_assets.wire.files.container import FileFormat
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.select import Chooser
from kbq_assets.wire.records.staged_schema import StagedSchema
from kbq_assets.wire.records.verdicts import RecordLimits

MOST_TABLES = 200
"""Most tables per window, because every open file takes memory."""


class ValueFormat(StrEnum):
    """The encoding of a topic's values."""

    AVRO = "avro"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Route:
    """The table and schema for the records of a schema id. If there is a ``chooser``, each record's content decides:
    the chooser returns a route without chooser."""

    table: str
    schema: StagedSchema
    chooser: Chooser[Route | RejectedSchema] | None = None


@dataclass(frozen=True, slots=True)
class RejectedSchema:
    """The reason that records have no table, because of their schema id (UNKNOWN_SCHEMA, UNSTAGEABLE_SCHEMA) or of
    their choice."""

    reason: Reason
    message: str


Resolve: TypeAlias = Callable[[int], Route | RejectedSchema]


@dataclass(frozen=True, slots=True)
class WindowContext:
    """How to read and write the records of one window."""

    origin: RecordOrigin
    format: FileFormat
    value_format: ValueFormat = ValueFormat.AVRO
    limits: RecordLimits = RecordLimits()  # noqa: RUF009 (frozen)
    #: The route of null values; None rejects them.
    tombstones: Route | None = None
    #: Most tables that records of one window may choose.
    max_tables: int = MOST_TABLES
