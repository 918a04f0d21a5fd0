"""Shared by all files of a window: origin and format, and the routes of its records."""

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
"""Of a window: every open file takes memory."""


class ValueFormat(StrEnum):
    """How a topic's values are written."""

    AVRO = "avro"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Route:
    """The table and schema of a schema id's records. With a ``chooser`` each record's content decides: the chooser
    returns a route without one."""

    table: str
    schema: StagedSchema
    chooser: Chooser[Route | RejectedSchema] | None = None


@dataclass(frozen=True, slots=True)
class RejectedSchema:
    """Why records have no table: those of a schema id (UNKNOWN_SCHEMA, UNSTAGEABLE_SCHEMA), or what they choose."""

    reason: Reason
    message: str


Resolve: TypeAlias = Callable[[int], Route | RejectedSchema]


@dataclass(frozen=True, slots=True)
class WindowContext:
    """How the records of one window are read and written."""

    origin: RecordOrigin
    format: FileFormat
    value_format: ValueFormat = ValueFormat.AVRO
    limits: RecordLimits = RecordLimits()  # noqa: RUF009 (frozen)
    #: Where null values go; None rejects them.
    tombstones: Route | None = None
    #: Tables that records of one window may choose.
    max_tables: int = MOST_TABLES
