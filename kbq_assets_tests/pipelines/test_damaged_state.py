"""A damaged state object stops only its own topic or table, is reported by name, and works again once restored."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import CorruptState
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.pipelines.operate.commands import propose_resume_table
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fixtures.golden_state import staging_area
from kbq_assets_tests.pipelines.bench import A, B, Bench

OBJECTS = {
    "commits/_topics.json": "everything",
    "tables/_tables.json": "everything",
    "commits/shop.events.json": "topic",
    "tables/d.A.json": "A",
    "tables/d.B.json": "B",
    "backlog/d.A/1-shop.events.0.4.json": "A",
}


def flip(bench: Bench, path: str) -> None:
    """Flip a bit in the middle of an object."""
    found = bench.store.get(path)
    data = bytearray(found.data)
    data[len(data) // 2] ^= 4
    bench.store.swap(path, bytes(data), found.generation)


def messages(bench: Bench) -> str:
    """What an extraction and a load report."""
    texts = []
    for run in (bench.extract, bench.load):
        try:
            texts.append(repr(run()))
        except CorruptState as error:
            texts.append(str(error))
    return "\n".join(texts)


@pytest.mark.parametrize("path", OBJECTS)
def test_a_flipped_bit_stops_its_own_topic_or_table_until_the_object_is_restored(path: str) -> None:
    bench = staging_area()
    propose_resume_table(bench.store, A).apply()
    good = bench.store.get(path).data
    flip(bench, path)
    said = messages(bench)
    assert f"{path} cannot be read" in said
    assert "its checksum is wrong" in said or "its beginning is damaged" in said
    rows = {A: len(bench.offsets(A)), B: len(bench.offsets(B))}
    stopped = OBJECTS[path]
    assert rows[A] == (4 if stopped in ("A", "everything") else 6 if stopped == "topic" else 7)
    assert rows[B] == (2 if stopped in ("B", "everything") else 4)
    assert bench.warehouse.duplicates() == {}

    bench.store.swap(path, good, bench.store.get(path).generation)
    for _ in range(2):
        bench.extract()
        bench.load()
    assert (len(bench.offsets(A)), len(bench.offsets(B))) == (7, 4)
    assert bench.warehouse.duplicates() == {}


def test_a_damaged_schema_stops_nothing_as_files_have_its_types(caplog: pytest.LogCaptureFixture) -> None:
    bench = staging_area()
    propose_resume_table(bench.store, A).apply()
    [path, *others] = [entry.path for entry in bench.store.list("schemas/")]
    flip(bench, path)
    for number, other in enumerate(others):
        damaged = (b"\xff{", b"null", b'{"type": "record"}', b"")[number % 4]
        bench.store.swap(other, damaged, bench.store.get(other).generation)
    for _ in range(2):
        bench.extract()
        bench.load()
    assert (len(bench.offsets(A)), len(bench.offsets(B))) == (7, 4)
    assert f"{others[0]} is gone or damaged" in caplog.text


def test_without_schema_and_header_one_table_parks_for_its_damaged_file() -> None:
    bench = Bench()
    bench.produce(1, 3)
    bench.extract()
    for entry in list(bench.store.list("schemas/")):
        bench.store.delete(entry.path)
    [path] = [entry.path for entry in bench.store.list("staging/") if ".d.A." in entry.path]
    found = bench.store.get(path)
    bench.store.swap(path, found.data.replace(b"avro.schema", b"avro.Schema"), found.generation)
    bench.load()
    assert (bench.offsets(A), bench.offsets(B)) == ([], [1])
    parked = state.read(bench.store, TableState, table_state_path(A)).value.parked
    assert parked is not None and parked.reason == "damaged_files"
