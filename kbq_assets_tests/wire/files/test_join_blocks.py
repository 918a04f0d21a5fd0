"""Blocks of several container files under one header: the same records, not decoded."""

from __future__ import annotations

import io

import fastavro
import pytest

from kbq_assets.wire.files.container import ContainerWriter, FileFormat
from kbq_assets.wire.files.join_blocks import beginning, blocks, header_in
from kbq_assets.wire.files.read_container import DamagedFile

SCHEMA = '{"type":"record","name":"r","fields":[{"name":"x","type":"long"}]}'


def container(marker: int, *values: int) -> bytes:
    """A file with a block per value."""
    sink = io.BytesIO()
    writer = ContainerWriter(sink, SCHEMA, FileFormat(bytes([marker] * 16)), {"kbq.note": b"x"})
    for value in values:
        writer.write_block(bytes([value * 2]), 1)
    return sink.getvalue()


def test_the_records_of_all_files_are_in_one() -> None:
    files = [container(1, 1, 2), container(2), container(3, 3)]
    header = header_in(files[0])
    made = beginning(header) + b"".join(block for file in files for block in blocks(file, header.sync_marker))
    assert made.startswith(files[0])  # the first file as it is
    reader = fastavro.reader(io.BytesIO(made))
    assert [record["x"] for record in reader] == [1, 2, 3]  # type: ignore[index,call-overload]
    assert reader.metadata["kbq.note"] == "x"


@pytest.mark.parametrize("damage", [slice(0, -1), slice(0, 40), slice(4, None)])
def test_a_damaged_file_is_refused(damage: slice) -> None:
    with pytest.raises(DamagedFile):
        list(blocks(container(1, 1, 2)[damage], b"\0" * 16))
