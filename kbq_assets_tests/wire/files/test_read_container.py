"""Container files, read strictly: what was written comes back, and what is cut or changed is an error."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.wire.chunk import encode_bytes, encode_long
from kbq_assets.wire.files.container import MAGIC, header_of
from kbq_assets.wire.files.join_blocks import beginning, blocks, header_in
from kbq_assets.wire.files.read_container import DamagedFile, Header, read_blocks, read_header

MARKER = bytes(range(16))
ENTRIES = {"avro.schema": b'"long"', "avro.codec": b"null", "own": b"\xff\0"}


def block(count: int, data: bytes, marker: bytes = MARKER) -> bytes:
    return encode_long(count) + encode_long(len(data)) + data + marker


def read(data: bytes) -> tuple[Header, list[tuple[int, bytes]]]:
    stream = io.BytesIO(data)
    header = read_header(stream)
    return header, list(read_blocks(stream, header))


def damage_of(data: bytes) -> str:
    with pytest.raises(DamagedFile) as raised:
        read(data)
    assert raised.value.next_step == "restore the file from a backup"
    return raised.value.message


class TestHeaders:
    @given(entries=st.dictionaries(st.text(max_size=5), st.binary(max_size=200), min_size=1, max_size=5))
    @settings(max_examples=30)
    def test_entries_come_back_in_their_order(self, entries: dict[str, bytes]) -> None:
        header, found = read(header_of(entries, MARKER))
        assert list(header.entries.items()) == list(entries.items())
        assert (header.sync_marker, found) == (MARKER, [])

    def test_blocks_of_entries_may_state_their_bytes(self) -> None:
        pairs = [encode_bytes(key.encode()) + encode_bytes(value) for key, value in ENTRIES.items()]
        sized = encode_long(-2) + encode_long(len(pairs[0] + pairs[1])) + pairs[0] + pairs[1]
        data = MAGIC + sized + encode_long(1) + pairs[2] + b"\0" + MARKER
        assert read_header(io.BytesIO(data)) == Header(ENTRIES, MARKER)

    @pytest.mark.parametrize(
        ("entries", "schema", "codec"),
        [
            ({"avro.schema": b'"long"'}, '"long"', "null"),
            ({"avro.schema": "ü".encode(), "avro.codec": b"snappy"}, "ü", "snappy"),
            ({"avro.schema": b"", "avro.codec": b"\xff"}, "", "\ufffd"),
        ],
        ids=["no codec", "a codec", "no text"],
    )
    def test_schema_and_codec_are_entries(self, entries: dict[str, bytes], schema: str, codec: str) -> None:
        header = Header(entries, MARKER)
        assert (header.schema, header.codec) == (schema, codec)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "not an Avro container file"),
            (b"Obj", "not an Avro container file"),
            (b"Obj\2" + bytes(17), "not an Avro container file"),
            (b"PAR1" + bytes(17), "not an Avro container file"),
            (MAGIC, "cut short"),
            (MAGIC + b"\0" + MARKER[:-1], "cut short"),
            (MAGIC + b"\x80" * 10, "longer than 64 bits"),
            (MAGIC + encode_long(2**62), "cut short"),
            (MAGIC + encode_long(-(2**63)) + b"\0", "cut short"),
            (MAGIC + encode_long(1) + encode_long(-1), "an entry of -1 bytes"),
            (MAGIC + encode_long(1) + encode_long(2**30 + 1), f"an entry of {2**30 + 1} bytes"),
            (MAGIC + encode_long(1) + encode_long(2**30), "cut short"),
            (MAGIC + encode_long(1) + encode_bytes(b"a") + encode_long(-5), "an entry of -5 bytes"),
        ],
    )
    def test_what_is_no_header_is_damage(self, data: bytes, message: str) -> None:
        assert message in damage_of(data)


class TestBlocks:
    @given(st.lists(st.tuples(st.integers(0, 2**40), st.binary(max_size=200)), max_size=4))
    @settings(max_examples=30)
    def test_blocks_come_back_as_they_are_stored(self, wanted: list[tuple[int, bytes]]) -> None:
        data = header_of(ENTRIES, MARKER) + b"".join(block(*each) for each in wanted)
        assert read(data) == (Header(ENTRIES, MARKER), wanted)

    @pytest.mark.parametrize(
        ("rest", "message"),
        [
            (encode_long(-1) + encode_long(0) + MARKER, "claims -1 records in 0 bytes"),
            (encode_long(1) + encode_long(-1) + MARKER, "claims 1 record in -1 bytes"),
            (encode_long(1) + encode_long(2**30 + 1), f"claims 1 record in {2**30 + 1} bytes"),
            (encode_long(1) + encode_long(2**30), "cut short"),
            (b"\x80" * 11, "longer than 64 bits"),
            (b"\x80", "cut short"),
            (block(1, b"abc", MARKER[::-1]), "does not end with the file's sync marker"),
            (block(1, b"abc") + b"\0", "cut short"),
            (block(1, b"abc")[:-1], "cut short"),
        ],
    )
    def test_what_is_no_block_is_damage(self, rest: bytes, message: str) -> None:
        assert message in damage_of(header_of(ENTRIES, MARKER) + block(2, b"whole") + rest)

    def test_blocks_before_the_damage_are_given(self) -> None:
        stream = io.BytesIO(block(2, b"whole") + block(1, b"abc")[:-1])
        found = read_blocks(stream, Header(ENTRIES, MARKER))
        assert next(found) == (2, b"whole")
        with pytest.raises(DamagedFile):
            next(found)


def test_a_file_that_is_cut_is_never_a_shorter_one() -> None:
    head = header_of(ENTRIES, MARKER)
    ends = {len(head), len(head + block(2, b"a")), len(head + block(2, b"a") + block(0, b""))}
    data = head + block(2, b"a") + block(0, b"")
    for end in range(len(data)):
        if end in ends:
            read(data[:end])
        else:
            damage_of(data[:end])


class TestJoining:
    def test_blocks_get_the_marker_of_their_new_file(self) -> None:
        other = bytes(16)
        one = header_of(ENTRIES, MARKER) + block(2, b"ab") + block(1, b"c")
        two = header_of(ENTRIES, other) + block(3, b"def", other)
        header = header_in(two)
        joined = beginning(header) + b"".join(blocks(one, other)) + b"".join(blocks(two, other))
        assert read(joined) == (header, [(2, b"ab"), (1, b"c"), (3, b"def")])

    @pytest.mark.parametrize(
        "use", [header_in, lambda data: list(blocks(data, MARKER))], ids=["header", "blocks"]
    )
    def test_damage_is_named(self, use: Callable[[bytes], object]) -> None:
        with pytest.raises(DamagedFile):
            use(b"nothing")

    def test_a_file_without_blocks_has_none(self) -> None:
        assert list(blocks(header_of(ENTRIES, MARKER), MARKER)) == []
