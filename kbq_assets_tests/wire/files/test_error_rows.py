"""The error table's rows: nothing of a bad record is lost."""

from __future__ import annotations

import datetime as dt
import io

import fastavro
import pytest

from kbq_assets.core.avro.canonical import schema_fingerprint
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.files.container import BLOCK_BYTES
from kbq_assets.wire.files.encode import FileFormat, NewFile
from kbq_assets.wire.files.error_rows import (
    ERROR_FINGERPRINT,
    ERROR_SCHEMA,
    ERROR_SCHEMA_ID,
    ErrorRows,
    error_schema_json,
)
from kbq_assets.wire.records.reasons import Reason
from kbq_assets_tests.wire.samples import (
    DAY,
    MILLIS,
    SOURCE,
    SYNC_MARKER,
    Sinks,
    chunk_of,
    framed,
    staged,
    window,
)

TABLE = "shop.orders_errors"
TEXT = staged(("text", "string"))


def errors(sinks: Sinks) -> ErrorRows:
    return ErrorRows(SOURCE, TABLE, sinks.open, FileFormat(SYNC_MARKER))


def test_what_a_row_cannot_hold_is_left_out_and_reported() -> None:
    sinks, large = Sinks(), bytes(16_000_000)
    messages = [
        RawRecord(large, 0, MILLIS, b"key", [("a", large)]),
        RawRecord(b"small", 1, MILLIS, large, [("a", b"b")]),
    ]
    chunk = Chunk.from_messages(messages, keys=True, headers=True)
    rows = errors(sinks)
    rows.add(chunk, window(sinks, {}).add(chunk))
    assert rows.finish() is not None
    first, second = sinks.rows(table=TABLE)
    assert (first["value"], first["headers"], first["key"]) == (None, [], b"key")
    assert "; value of 16000000 bytes left out: a row has at most 16 MB" in first["message"]
    assert (second["key"], second["value"], len(second["headers"])) == (None, b"small", 1)


def test_a_reject_becomes_a_row_with_all_that_was_known() -> None:
    sinks = Sinks()
    bad = framed(b"\x02\xff", 1)
    messages = [
        RawRecord(framed(b"\x02a"), 10, MILLIS),
        RawRecord(bad, 11, MILLIS, b"key", [("trace", b"\x00\x01"), ("none", None)]),
        RawRecord(None, 12, -1, b"gone"),
        RawRecord(b"", 13, 2**62),
    ]
    chunk = Chunk.from_messages(messages, keys=True, headers=True)
    rows = errors(sinks)
    rows.add(chunk, window(sinks, {1: TEXT}).add(chunk))
    file = rows.finish()
    assert file is not None
    first, tombstone, empty = sinks.rows(table=TABLE)
    assert first == {
        "_kafka_topic": SOURCE.topic,
        "_kafka_partition": SOURCE.partition,
        "_kafka_offset": 11,
        "_kafka_timestamp": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "_kbq_epoch": SOURCE.epoch,
        "reason": "INVALID_UTF8",
        "message": "a string is not valid UTF-8 in field text (byte 5 of the value)",
        "schema_id": 1,
        "key": b"key",
        "value": bad,
        "headers": [{"key": "trace", "value": b"\x00\x01"}, {"key": "none", "value": None}],
        "event_date": dt.date(2026, 1, 1),
    }
    assert (tombstone["reason"], tombstone["value"], tombstone["schema_id"]) == ("TOMBSTONE", None, None)
    assert (empty["reason"], empty["value"], empty["key"]) == ("TOO_SHORT", b"", None)
    assert empty["event_date"] == tombstone["event_date"] == dt.date(1970, 1, 1)
    data = sinks.files[NewFile(TABLE, ERROR_SCHEMA_ID, ERROR_FINGERPRINT, 11)].getvalue()
    assert (file.rows, file.first_offset, file.last_offset) == (3, 11, 13)
    assert file.event_dates == frozenset({DAY, 0})
    assert (file.bytes_written, rows.bytes_written, rows.rows) == (len(data), len(data), 3)


def test_without_rejects_there_is_no_file() -> None:
    sinks = Sinks()
    rows = errors(sinks)
    chunk = chunk_of(framed(b"\x02a"))
    rows.add(chunk, window(Sinks(), {1: TEXT}).add(chunk))
    assert (rows.finish(), rows.bytes_written, sinks.files) == (None, 0, {})


def test_keys_and_headers_that_were_not_read_are_null_and_empty() -> None:
    sinks = Sinks()
    rows = errors(sinks)
    chunk = chunk_of(b"bad")
    rows.add(chunk, window(Sinks(), {}).add(chunk))
    rows.finish()
    assert [(row["key"], row["headers"]) for row in sinks.rows()] == [(None, [])]


def test_only_the_rejects_taken_become_rows() -> None:
    sinks = Sinks()
    rows = errors(sinks)
    chunk = chunk_of(b"bad", None, b"\x00", b"worse")
    rejects = window(Sinks(), {}).add(chunk)
    rows.add(chunk, rejects.take(rejects.reasons != Reason.TOMBSTONE))
    rows.finish()
    assert [row["_kafka_offset"] for row in sinks.rows()] == [0, 2, 3]


def test_large_error_files_have_blocks() -> None:
    sinks = Sinks()
    rows = errors(sinks)
    chunk = chunk_of(*[b"\x01" * (BLOCK_BYTES // 3)] * 10)
    rows.add(chunk, window(Sinks(), {}).add(chunk))
    file = rows.finish()
    assert file is not None and file.bytes_raw > 3 * BLOCK_BYTES
    data = io.BytesIO(next(iter(sinks.files.values())).getvalue())
    assert [block.num_records for block in fastavro.block_reader(data)] == [3, 3, 3, 1]


def test_the_error_schema_is_what_the_file_says() -> None:
    assert ERROR_FINGERPRINT == schema_fingerprint(error_schema_json()) == schema_fingerprint(ERROR_SCHEMA)
    fastavro.parse_schema(ERROR_SCHEMA)


def test_a_message_that_is_not_unicode_is_still_written() -> None:
    sinks = Sinks()
    rows = errors(sinks)
    chunk = chunk_of(b"bad")
    rejects = window(Sinks(), {}).add(chunk)
    rejects.messages[0] = "\udcff"
    rows.add(chunk, rejects)
    rows.finish()
    assert sinks.rows()[0]["message"] == "?"


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_name_to_be_shown(reason: Reason) -> None:
    assert reason.name == reason.name.upper() and reason.message[0].islower()
