"""Reasons that a record is not a row: codes of validation, shown in the error table.

This module does not import numba, because the driver, the command line and the worker's policies use it too.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class Reason(IntEnum):
    """One byte per record; 0 means good. Error rows show the *name*, so numbers may change, but names may not."""

    GOOD = 0
    NULL_VALUE = 1
    TOMBSTONE = 2
    TOO_SHORT = 3
    WRONG_MAGIC = 4
    UNKNOWN_SCHEMA = 5
    UNSTAGEABLE_SCHEMA = 6
    TOO_LARGE = 7
    TRUNCATED = 8
    TRAILING_BYTES = 9
    INVALID_BOOLEAN = 10
    INVALID_ENUM = 11
    INVALID_UNION = 12
    INVALID_UTF8 = 13
    INVALID_LENGTH = 14
    INVALID_BLOCK = 15
    INT_OVERFLOW = 16
    OUT_OF_RANGE = 17
    TOO_DEEP = 18
    TOO_MANY_ITEMS = 19
    INVALID_JSON = 20
    INVALID_PROTOBUF = 21
    UNKNOWN_TABLE = 22
    TOO_MANY_TABLES = 23
    REPEATED_KEY = 25
    VIOLATES_SCHEMA = 26
    TOO_COMPLEX = 27
    INVALID_KEY = 28
    INVALID_CHANGE = 29
    NO_CHANGE = 30
    TABLE_TRUNCATED = 31
    NULL_ITEM = 32
    UNFIT_VALUE = 33

    @property
    def message(self) -> str:
        """The record's problem in one sentence, for people."""
        return _MESSAGES[self]


_MESSAGES = {
    Reason.GOOD: "the record is good",
    Reason.NULL_VALUE: "the value and the key are null",
    Reason.TOMBSTONE: "the value is null (a tombstone)",
    Reason.TOO_SHORT: "the value is shorter than the 5-byte Confluent prefix",
    Reason.WRONG_MAGIC: "the value does not start with the magic byte 0 of the Confluent format; see the option "
    "framing for other ways to refer to a schema",
    Reason.UNKNOWN_SCHEMA: "the schema registry does not know the schema id",
    Reason.UNSTAGEABLE_SCHEMA: "the writer schema cannot be staged",
    Reason.TOO_LARGE: "the value is larger than the limit",
    Reason.TRUNCATED: "the value ends before the end of the record",
    Reason.TRAILING_BYTES: "bytes follow the end of the record",
    Reason.INVALID_BOOLEAN: "a boolean is neither 0 nor 1",
    Reason.INVALID_ENUM: "an enum index has no symbol",
    Reason.INVALID_UNION: "a union index has no branch",
    Reason.INVALID_UTF8: "a string is not valid UTF-8",
    Reason.INVALID_LENGTH: "the length of a string or of bytes is negative",
    Reason.INVALID_BLOCK: "an array or map block does not have the size it states",
    Reason.INT_OVERFLOW: "a variable-length integer is longer or wider than its type",
    Reason.OUT_OF_RANGE: "a number, date, time or decimal is outside the range of its type",
    Reason.TOO_DEEP: "the value is nested deeper than the limit",
    Reason.TOO_MANY_ITEMS: "arrays and maps hold more items than the limit",
    Reason.INVALID_JSON: "the value is not one JSON document",
    Reason.INVALID_PROTOBUF: "the value is not a message of its schema",
    Reason.REPEATED_KEY: "an object has a duplicate key, so it is unknown which value is personal",
    Reason.VIOLATES_SCHEMA: "the value violates its JSON Schema",
    Reason.TOO_COMPLEX: "validating the value against its JSON Schema would take too long",
    Reason.INVALID_KEY: "the key cannot become a column",
    Reason.INVALID_CHANGE: "the change event has no row",
    Reason.NO_CHANGE: "the event is a message from Debezium that changes no row",
    Reason.TABLE_TRUNCATED: "the database table was truncated, and rows of several partitions have no order",
    Reason.NULL_ITEM: "an array has a null item, for which BigQuery refuses the whole file; null_items=keep accepts it",
    Reason.UNFIT_VALUE: "a value that the table's statement needs does not fit its column",
    Reason.UNKNOWN_TABLE: "the record does not choose a table, or chooses an unknown one",
    Reason.TOO_MANY_TABLES: "the window already has as many tables as max_tables allows",
}
