"""Compiles all kernels before the first record: in the install step, and when a worker starts."""

from __future__ import annotations

import numpy as np

from kbq_assets.core.topics.business_time import BusinessTime
from kbq_assets.core.topics.json.inference import InferredSchema
from kbq_assets.core.topics.personal import parse_decisions
from kbq_assets.wire.backup import kernels as backup
from kbq_assets.wire.chunk import Chunk, RawRecord, Spans
from kbq_assets.wire.files.encode import (
    FileFormat,
    NewFile,
    RecordOrigin,
    Route,
    ValueFormat,
    WindowContext,
    WindowEncoder,
)
from kbq_assets.wire.json.encode import DocumentEncoder
from kbq_assets.wire.json.layout import layout_of
from kbq_assets.wire.privacy import hashes
from kbq_assets.wire.privacy.json import JsonRedactor
from kbq_assets.wire.privacy.json_quick import QuickRedactor
from kbq_assets.wire.protobuf.encode import MessageEncoder
from kbq_assets.wire.protobuf.layout import LayoutBuilder
from kbq_assets.wire.records.join import NO_MARK, joined
from kbq_assets.wire.records.select import Chooser
from kbq_assets.wire.records.staged_schema import (
    MetadataColumns,
    StagedSchema,
    json_staged_schema,
    staged_schema,
)
from kbq_assets.wire.records.verdicts import RecordLimits


def warm_up() -> None:
    """Compile all kernels, or load them from the disk cache. Takes about 15 s the first time, then 0.3 s."""
    metadata = MetadataColumns(key=True, headers=True, business_time=BusinessTime(("text",)))
    avro = staged_schema(
        {"type": "record", "name": "R", "fields": [{"name": "text", "type": "string"}]}, metadata, ["text"]
    )
    _encode_one(
        avro, ValueFormat.AVRO, b"\x00\x00\x00\x00\x01\x142026-01-01", ("field.text", "key", "header.h")
    )
    _encode_one(json_staged_schema(metadata), ValueFormat.JSON, b'{"a": [1, null]}')
    one = Chunk.from_messages([RawRecord(b"x", 0)])
    spans = Spans.of([b"x"])
    joined(one, spans, spans, np.full(1, NO_MARK, np.uint8), spans)
    backup.warm_up()
    hashes.warm_up()
    document = Chunk.from_messages([RawRecord(b"{}", 0)])
    DocumentEncoder(layout_of(InferredSchema(), None), 1).encode(document, np.arange(1), 2, 1)
    redactor = JsonRedactor(parse_decisions("a:null"), None, "keep")
    QuickRedactor(redactor, None).redact(document, np.arange(1), RecordLimits())
    builder = LayoutBuilder()
    builder.reserve(0)
    MessageEncoder(builder.built(), 1).encode(document, np.arange(1))


def _encode_one(
    schema: StagedSchema, value_format: ValueFormat, value: bytes, inputs: tuple[str, ...] = ()
) -> None:
    table = Route("dataset.table", schema)
    route = Route("", schema, Chooser(inputs, lambda values: table)) if inputs else table
    encoder = WindowEncoder(
        WindowContext(RecordOrigin("topic", 0, 0), FileFormat(bytes(16)), value_format),
        resolve=lambda schema_id: route,
        open_sink=_Nowhere,
    )
    hours = [RawRecord(value, offset, offset * 3_600_000) for offset in range(2)]
    encoder.add(Chunk.from_messages(hours, keys=True, headers=True))
    encoder.finish()


class _Nowhere:
    """A sink that discards its data."""

    def __init__(self, file: NewFile) -> None:
        self.file = file

    def write(self, data: bytes, /) -> None:
        pass
