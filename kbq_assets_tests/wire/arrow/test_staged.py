"""Files that are read together give the rows, and the errors, that each of them gives alone."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.wire.arrow import decode, kernel, staged
from kbq_assets.wire.arrow.errors import BadFile, DamagedSource, LoadError, MissingSource
from kbq_assets.wire.arrow.staged import StagedTables, in_turn
from kbq_assets.wire.files.checksum import ChecksumReader
from kbq_assets_tests.fixtures.work import calls_of
from kbq_assets_tests.sizes import examples
from kbq_assets_tests.wire.arrow.test_kernel import flat, nested

SCHEMA = json.dumps({"type": "record", "name": "r", "fields": [{"name": "x", "type": "string"}]})
OTHER = json.dumps({"type": "record", "name": "s", "fields": [{"name": "x", "type": "string"}]})


def avro(records: list[dict[str, Any]], schema: str = SCHEMA, codec: str = "snappy") -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, json.loads(schema), records, codec=codec, sync_interval=40)
    return stream.getvalue()


def entry(uri: str, data: bytes) -> StagedFile:
    size, crc32c = ChecksumReader(io.BytesIO(data)).drain()
    return StagedFile(uri, 0, 9, 9, size, size, crc32c, "f")


class Files:
    """Files in memory, as a job lists them."""

    def __init__(self, contents: Mapping[str, bytes], schema: str = SCHEMA) -> None:
        self.contents = dict(contents)
        self.listed = {uri: entry(uri, data) for uri, data in contents.items()}
        self.columns = columns_of(schema)

    def together(self, *uris: str) -> list[Any]:
        """The rows of some files, or of all, in one reading: row by row, with their file."""
        tables = StagedTables(self.columns, lambda uri: io.BytesIO(self.contents[uri]))
        found = []
        for batch in tables.read(uris or self.contents, self.listed):
            owners = [uri for uri, count in batch.rows.items() for _ in range(count)]
            batch.table.validate(full=True)
            found += [(owner, repr(row)) for owner, row in zip(owners, batch.table.to_pylist(), strict=True)]
        return found

    def one_by_one(self) -> list[Any]:
        return [row for uri in self.contents for row in self.together(uri)]

    def error(self, *uris: str) -> LoadError:
        with pytest.raises(LoadError) as raised:
            self.together(*uris)
        return raised.value


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_files_that_are_decoded_together_have_the_rows_of_each_alone(data: st.DataObject) -> None:
    schema, records = data.draw(flat() | nested())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=4)))
    parts = [records[a:b] for a, b in zip([0, *cuts], [*cuts, len(records)], strict=True)]
    codecs = data.draw(st.lists(st.sampled_from(["null", "deflate", "snappy"]), min_size=5, max_size=5))
    contents = {f"u{n}": avro(part, schema, codecs[n]) for n, part in enumerate(parts)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_PAST", decode._Past(data.draw(st.sampled_from([0, 1 << 30]))))
        patch.setattr(decode, "_STARTED_BYTES", 0)
        patch.setattr(decode, "_FLAT_VALUES", 0)
        patch.setattr(kernel, "_BATCH_VALUES", data.draw(st.sampled_from([0, 9, 1 << 20])))
        patch.setattr(decode, "_OBJECT_BYTES", data.draw(st.sampled_from([0, 1 << 20])))
        patch.setattr(staged, "_AT_ONCE", data.draw(st.sampled_from([1, 3])))
        for records_at_once in ("_RECORDS", "_LISTS"):
            patch.setattr(decode, records_at_once, data.draw(st.sampled_from([1, 3, 10_000])))
        patch.setattr(staged, "_SMALL_BYTES", data.draw(st.sampled_from([0, 1 << 20])))
        patch.setattr(staged, "_BATCH_BYTES", data.draw(st.sampled_from([1, 20, 1 << 20])))
        files = Files(contents, schema)
        together = files.together()
        patch.setattr(decode, "_PAST", decode._Past())
        assert [row for uri in contents for row in together if row[0] == uri] == files.one_by_one()


def test_files_are_read_in_turn_some_at_once() -> None:
    """Files that are read at the same time have rows of the same hours."""
    opened = []

    def items(name: str, count: int) -> Iterator[str]:
        opened.append(name)
        return (f"{name}{n}" for n in range(count))

    found = in_turn((items(name, count) for name, count in (("a", 3), ("b", 1), ("c", 0), ("d", 2))), 2)
    assert next(found) == "a0"
    assert opened == ["a", "b"]
    assert list(found) == ["b0", "a1", "a2", "d0", "d1"]


def test_two_schemas_in_turn_are_two_batches() -> None:
    files = Files({f"u{n}": avro([{"x": str(n)}], (SCHEMA, OTHER)[n % 2]) for n in range(10)})
    tables = StagedTables(files.columns, lambda uri: io.BytesIO(files.contents[uri]))
    batches = list(tables.read(files.contents, files.listed))
    assert sorted(sorted(batch.rows) for batch in batches) == [
        [f"u{n}" for n in range(0, 10, 2)],
        [f"u{n}" for n in range(1, 10, 2)],
    ]
    assert sorted(pa.concat_tables(b.table for b in batches)["x"].to_pylist()) == list("0123456789")


@pytest.mark.parametrize(
    ("codec", "place", "small"),
    [
        # Without the thorough ones each codec meets each way of reading, and two of the three places.
        pytest.param(codec, place, small, marks=[] if place == (at + way) % 3 else [pytest.mark.thorough])
        for at, codec in enumerate(("null", "deflate", "snappy"))
        for place in range(3)
        for way, small in enumerate((0, 1 << 20))
    ],
)
def test_a_bad_file_among_good_ones_is_named_as_if_it_were_alone(
    codec: str, place: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "_SMALL_BYTES", small)
    good = {f"u{n}": avro([{"x": f"{n}{m}"} for m in range(9)], codec=codec) for n in range(3)}
    whole, uri = good[f"u{place}"], f"u{place}"
    flipped = (whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole)))
    for changed in (*flipped, *(whole[:at] for at in range(len(whole)))):
        files = Files(good | {uri: changed})  # the commit lists these bytes: they were staged damaged
        try:
            alone = files.together(uri)
        except LoadError as error:
            found = files.error()
            assert (type(found), str(found)) == (type(error), str(error))
            others = [other for other in good if other != uri]
            assert len(files.together(*others)) == 18
        else:
            assert [row for row in files.together() if row[0] == uri] == alone
        files.listed[uri] = entry(uri, whole)  # the commit lists others: they were damaged afterwards
        assert type(files.error()) is DamagedSource


def test_a_record_that_no_file_alone_could_decode_is_blamed_on_its_file() -> None:
    bad = bytearray(avro([{"x": "ab"}], codec="null"))
    bad[bad.index(b"\4ab") + 1 : bad.index(b"\4ab") + 3] = b"\xff\xfe"  # no UTF-8
    files = Files({"a": avro([{"x": "1"}]), "b": bytes(bad), "c": avro([{"x": "2"}])})
    error = files.error()
    assert type(error) is BadFile
    assert error.message.startswith("b: ")


def test_a_file_that_is_gone_is_missing() -> None:
    files = Files({"a": avro([{"x": "1"}]), "b": avro([{"x": "2"}])})

    def open_uri(uri: str) -> io.BytesIO:
        if uri == "b":
            raise FileNotFoundError(uri)
        return io.BytesIO(files.contents[uri])

    with pytest.raises(MissingSource, match="b does not exist"):
        list(StagedTables(files.columns, open_uri).read(files.contents, files.listed))


def test_a_schema_that_does_not_fit_is_refused_in_a_file_without_records() -> None:
    wide = json.dumps({"type": "record", "name": "r", "fields": [{"name": "y", "type": "long"}]})
    assert "lacks y" in Files({"a": avro([{"x": "1"}]), "b": avro([], wide)}).error().message


def test_a_file_that_comes_in_pieces_is_read_whole() -> None:
    class Slow(io.RawIOBase):
        def __init__(self, data: bytes) -> None:
            self._data = io.BytesIO(data)

        def read(self, size: int = -1) -> bytes:
            return self._data.read(min(size, 7) if size > 0 else 7)

    data = avro([{"x": str(n)} for n in range(50)])
    found = StagedTables(columns_of(SCHEMA), lambda uri: Slow(data)).read(["a"], {"a": entry("a", data)})  # type: ignore[arg-type,return-value]
    assert [row["x"] for batch in found for row in batch.table.to_pylist()] == [str(n) for n in range(50)]


def test_four_times_the_files_of_a_job_make_no_more_batches() -> None:
    one = avro([{"x": "1"}])

    def read(count: int) -> int:
        files = Files({f"u{n}": one for n in range(count)})
        tables = StagedTables(files.columns, lambda uri: io.BytesIO(files.contents[uri]))
        return sum(1 for _ in tables.read(files.contents, files.listed))

    assert (read(20), read(80)) == (1, 1)
    read(1)
    few, many = calls_of(lambda: read(50)), calls_of(lambda: read(200))
    assert many < 4.2 * few
