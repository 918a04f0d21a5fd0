"""Container files as others read them."""

from __future__ import annotations

import io
import json
import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from kbq_assets.core.avro.canonical import schema_fingerprint
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.wire.chunk import encode_bytes
from kbq_assets.wire.files import codec as codecs
from kbq_assets.wire.files.codec import Codec, compressor
from kbq_assets.wire.files.container import ContainerWriter, FileFormat
from kbq_assets.wire.files.read_container import read_header
from kbq_assets.wire.records.staged_schema import MetadataColumns, staged_schema
from kbq_assets_tests.wire.samples import SYNC_MARKER, Sinks, chunk_of, framed, staged, texts, window

SCHEMA = '{"type":"record","name":"R","fields":[{"name":"text","type":"string"}]}'
CODECS = ("snappy", "deflate", "null")


def container(codec: Codec, *blocks: list[str], **options: Any) -> bytes:
    stream = io.BytesIO()
    writer = ContainerWriter(stream, SCHEMA, FileFormat(SYNC_MARKER, codec), **options)
    for block in blocks:
        writer.write_block(b"".join(encode_bytes(text.encode()) for text in block), len(block))
    assert writer.bytes_written == len(stream.getvalue())
    return stream.getvalue()


@pytest.mark.parametrize("codec", CODECS)
def test_fastavro_reads_every_codec(codec: Codec) -> None:
    blocks = [["a", "é" * 5000], [str(number) for number in range(1000)], [""]]
    reader = fastavro.reader(io.BytesIO(container(codec, *blocks)))
    assert [row["text"] for row in reader if isinstance(row, dict)] == [
        text for block in blocks for text in block
    ]
    assert reader.metadata["avro.codec"] == codec


@pytest.mark.parametrize("codec", CODECS)
def test_a_container_without_blocks_is_an_empty_one(codec: Codec) -> None:
    assert list(fastavro.reader(io.BytesIO(container(codec)))) == []


def test_the_header_depends_on_its_input_alone() -> None:
    one = container("null", extra_metadata={"kbq.b": b"2", "kbq.a": b"1"})
    two = container("null", extra_metadata={"kbq.a": b"1", "kbq.b": b"2"})
    assert one == two
    assert one.endswith(SYNC_MARKER)
    assert fastavro.reader(io.BytesIO(one)).metadata["kbq.b"] == "2"


def test_the_header_has_the_types_of_a_schema_alone() -> None:
    """The stored schema keeps descriptions and tags: the loader reads them there."""
    sinks, known = Sinks(), {"doc": "Said.", "default": "x", "pii": "HIGH", "order": "none"}
    source = {"type": "record", "name": "R", "fields": [{"name": "text", "type": "string", **known}]}
    schema = staged_schema(source, MetadataColumns())
    window(sinks, {1: schema}).add(chunk_of(*texts(1)))
    [stream] = sinks.files.values()
    written = read_header(io.BytesIO(stream.getvalue())).schema
    assert [set(field) for field in json.loads(written)["fields"]] == [{"name", "type"}] * 7
    assert schema_fingerprint(written) == schema.fingerprint
    [column] = [each for each in columns_of(schema.json) if each.name == "text"]
    assert (column.description, column.pii) == ("Said.", "HIGH")


def test_a_snappy_block_ends_with_the_checksum_of_what_it_holds() -> None:
    block = os.urandom(1000)
    assert compressor("snappy")(block)[-4:] == zlib.crc32(block).to_bytes(4)


@pytest.mark.parametrize("library", [codecs._isal, None])
def test_deflate_is_raw_with_either_library(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "_isal", library)
    block = b"abc" * 1000
    assert zlib.decompress(compressor("deflate")(block), wbits=-15) == block


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """A bare JVM with Spark's jars, among them Avro for Java: no Spark session."""
    from pyspark import java_gateway

    launch: Any = java_gateway.launch_gateway
    gateway = launch()
    yield gateway.jvm
    gateway.shutdown()
    gateway.proc.stdin.close()  # Spark's launcher ends with its standard input
    gateway.proc.wait(timeout=120)


# Avro for C++ reads every header in test_avro_cpp.py.
@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.parametrize("codec", CODECS)
def test_avro_for_java_reads_every_codec(codec: Codec, jvm: Any, tmp_path: Path) -> None:
    sinks = Sinks()
    schema = staged(
        ("text", "string"),
        ("when", ["null", {"type": "int", "logicalType": "date"}]),
        metadata=MetadataColumns(),
    )
    encoder = window(sinks, {1: schema}, codec=codec, block_bytes=2000)
    rng = random.Random(1)
    values = [
        framed(encode_bytes(rng.randbytes(20).hex().encode()) + rng.choice([b"\x00", b"\x02\x0a"]))
        for _ in range(500)
    ]
    assert not len(encoder.add(chunk_of(*values)))
    (file,) = encoder.finish()
    path = tmp_path / "staged.avro"
    path.write_bytes(next(iter(sinks.files.values())).getvalue())
    rows = _read_in_java(jvm, path)
    assert len(rows) == file.rows == 500
    assert rows == [(row["text"], row["_kafka_offset"], row["when"] is None) for row in sinks.rows()]


def _read_in_java(jvm: Any, path: Path) -> list[tuple[str, int, bool]]:
    avro = jvm.org.apache.avro
    reader = avro.file.DataFileReader(jvm.java.io.File(str(path)), avro.generic.GenericDatumReader())
    rows = []
    while reader.hasNext():
        row = reader.next()
        rows.append((row.get("text").toString(), row.get("_kafka_offset"), row.get("when") is None))
    reader.close()
    return rows


def test_the_texts_of_samples_are_records() -> None:
    sinks = Sinks()
    encoder = window(sinks, {1: staged(("text", "string"))})
    encoder.add(chunk_of(*texts(3)))
    encoder.finish()
    assert [row["text"] for row in sinks.rows()] == ["row 0", "row 1", "row 2"]
