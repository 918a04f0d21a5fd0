"""Files under another header."""

from __future__ import annotations

import io

import pytest

from kbq_assets.core.errors import EncodingError
from kbq_assets.wire.files.rewrite_header import reheaded
from kbq_assets.wire.records.renaming import renamed_json
from kbq_assets_tests.wire.samples import SYNC_MARKER, Sinks, chunk_of, read_rows, staged, texts, window

TEXT = staged(("text", "string"))


def a_file(codec: str = "snappy") -> bytes:
    sinks = Sinks()
    encoder = window(sinks, {1: TEXT}, codec=codec, block_bytes=500)
    encoder.add(chunk_of(*texts(100)))
    encoder.finish()
    [stream] = sinks.files.values()
    return stream.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_a_file_has_the_same_rows_under_other_names(codec: str) -> None:
    before = a_file(codec)
    after = b"".join(reheaded(io.BytesIO(before), renamed_json(TEXT.json, {("text",): "t"})))
    assert [{**row, "text": row["t"]} for row in read_rows(after)] == [
        {**row, "t": row["text"]} for row in read_rows(before)
    ]
    assert after.count(SYNC_MARKER) == before.count(SYNC_MARKER) > 2


def test_the_same_schema_makes_the_same_file() -> None:
    assert b"".join(reheaded(io.BytesIO(a_file()), TEXT.json)) == a_file()


@pytest.mark.parametrize("data", [b"", b"Obj", b"no container", a_file()[:100], b"Obj\x01" + b"\xff" * 20])
def test_what_has_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(EncodingError, match="no readable header"):
        list(reheaded(io.BytesIO(data), TEXT.json))
