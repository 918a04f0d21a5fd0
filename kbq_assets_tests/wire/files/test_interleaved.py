"""Schema ids that alternate do not close files (PROTOCOL E8)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.wire.records.renaming import renamed
from kbq_assets.wire.records.staged_schema import MetadataColumns, staged_schema
from kbq_assets_tests.wire.samples import Sinks, avro_body, chunk_of, framed, record_of, window

LONG, MORE, TEXT, POISON = 1, 2, 3, 0
SOURCES = {
    LONG: record_of(("x", "long")),
    MORE: record_of(("x", "long"), ("note", ["null", "string"])),
    TEXT: record_of(("x", "string")),
}
STAGED = {number: staged_schema(source, MetadataColumns()) for number, source in SOURCES.items()}
#: The third contradicts the others, and has an extra column.
STAGED[TEXT] = renamed(STAGED[TEXT], {("x",): "x__string"})


def value(schema_id: int, number: int) -> bytes:
    if schema_id == POISON:
        return b"\x01"
    x = str(number) if schema_id == TEXT else number
    return framed(avro_body(SOURCES[schema_id], {"x": x, "note": None}), schema_id)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([LONG, MORE, TEXT, POISON]), max_size=60),
    st.lists(st.integers(0, 60), max_size=4),
)
def test_a_window_has_a_file_per_schema_id_with_all_its_records_in_order(
    ids: list[int], cuts: list[int]
) -> None:
    sinks = Sinks()
    encoder = window(sinks, STAGED)
    values = [value(schema_id, number) for number, schema_id in enumerate(ids)]
    rejected = 0
    for first, last in pairwise(sorted({0, len(values), *(cut for cut in cuts if cut < len(values))})):
        rejected += len(encoder.add(chunk_of(*values[first:last], first_offset=first)))
    files = encoder.finish()
    good = set(ids) - {POISON}
    assert rejected == ids.count(POISON)
    assert sorted(file.schema_id for file in files) == sorted(good)
    for schema_id in good:
        offsets = [row["_kafka_offset"] for row in sinks.rows(schema_id=schema_id)]
        assert offsets == [number for number, found in enumerate(ids) if found == schema_id]
        column = "x__string" if schema_id == TEXT else "x"
        assert [int(row[column]) for row in sinks.rows(schema_id=schema_id)] == offsets
