"""Batches become chunks: all codecs, aborted transactions, cuts. Damaged data is refused, never skipped."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from kbq_assets.adapters.kafka.fetch import codecs
from kbq_assets.adapters.kafka.fetch.errors import Damaged, DamagedBatch, FetchFailure, NotSpoken
from kbq_assets.adapters.kafka.fetch.record_batches import Delivered, WantedOffsets, deliver, survey
from kbq_assets.wire.chunk import RawRecord
from kbq_assets_tests.adapters.kafka.fetch.wires import (
    ABORT,
    COMMIT,
    PACK,
    as_bytes,
    batch,
    marker,
    record,
    seal,
)
from kbq_assets_tests.contracts.source import as_messages

MESSAGES = [
    RawRecord(b"value", 5, 1_000, b"key", (("a", b"1"), ("a", None), ("é" * 70, b""))),
    RawRecord(None, 6, 999, b""),
    RawRecord(b"", 9, 2**41, None, (("b", b"\xff" * 300),)),
    *(RawRecord(b"v%d" % n * 40, n, 2_000 + n, b"k%d" % n) for n in range(10, 900)),
]
TRANSACTIONAL = 16
NO_ABORTED = np.empty((0, 2), np.int64)


def wanted(
    first: int = 0, until: int = 10_000, *, chunk_records: int = 1_000, most_bytes: int = 2**24
) -> WantedOffsets:
    return WantedOffsets(first, until, True, True, chunk_records, most_bytes)


def delivered(
    data: bytes, want: WantedOffsets | None = None, aborted: Sequence[tuple[int, int]] = ()
) -> list[Delivered]:
    found = as_bytes(data)
    rows = np.array(aborted, np.int64).reshape(-1, 2)
    return list(deliver(survey(found, 0, len(found)), want or wanted(), rows, found))


def messages(found: Sequence[Delivered]) -> list[RawRecord]:
    return [message for part in found for message in as_messages(part.chunk)]


def offsets(data: bytes, *aborted: tuple[int, int]) -> list[int]:
    return [message.offset for message in messages(delivered(data, aborted=aborted))]


@pytest.mark.parametrize("codec", PACK)
def test_records_come_back_as_they_were_packed(codec: str) -> None:
    found = delivered(batch(MESSAGES, codec=codec, epoch=7))
    assert messages(found) == MESSAGES
    assert [(part.position, part.record_epoch, part.batch_epoch) for part in found] == [(900, 7, 7)]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
@pytest.mark.parametrize("cut", [1, 5_000, 40_000])
def test_several_members_or_frames_are_one_batch(codec: str, cut: int) -> None:
    plain = b"".join(record(m, m.offset - 5, m.timestamp - 1_000) for m in MESSAGES)
    number, pack = PACK[codec]
    packed = bytes(pack(plain[:cut])) + bytes(pack(b"")) + bytes(pack(plain[cut:]))
    head = (5, 0, number, 894, 1_000, 1_000, -1, len(MESSAGES))
    assert messages(delivered(seal(packed, head))) == MESSAGES
    with pytest.raises(DamagedBatch, match="would unpack"):
        delivered(seal(packed, head), wanted(most_bytes=len(plain) // 2))


def test_batches_of_all_codecs_share_a_chunk() -> None:
    parts = [[RawRecord(b"x" * 50, 10 * i + n, 5) for n in range(10)] for i in range(len(PACK))]
    found = delivered(b"".join(batch(p, codec=codec) for p, codec in zip(parts, PACK, strict=True)))
    assert len(found) == 1
    assert messages(found) == [message for part in parts for message in part]


@pytest.mark.parametrize(("first", "until"), [(0, 5), (5, 6), (6, 10), (7, 12), (899, 900), (900, 1_000)])
def test_a_range_may_begin_and_end_within_a_batch(first: int, until: int) -> None:
    found = delivered(batch(MESSAGES), wanted(first, until))
    assert messages(found) == [m for m in MESSAGES if first <= m.offset < until]
    assert [part.position for part in found] == ([min(until, 900)] if first < 900 else [])


def test_a_batch_without_records_moves_the_position() -> None:
    found = delivered(batch([], base=3, next_offset=8))
    assert [(len(part.chunk), part.position, part.record_epoch) for part in found] == [(0, 8, -1)]


def test_chunks_are_cut_between_batches() -> None:
    data = b"".join(batch([RawRecord(b"x", 4 * i + n, 1) for n in range(4)], epoch=i) for i in range(5))
    found = delivered(data, wanted(chunk_records=8))
    assert [(len(p.chunk), p.position, p.record_epoch) for p in found] == [(8, 8, 1), (8, 16, 3), (4, 20, 4)]


def test_an_answer_of_the_usual_two_megabytes_is_one_chunk_if_it_unpacks_to_thrice_that() -> None:
    value = b"v" * 250_000
    data = b"".join(batch([RawRecord(value, n, 1_000)], codec="lz4") for n in range(24))
    assert [len(part.chunk) for part in delivered(data)] == [24]


def test_a_large_batch_is_cut_into_chunks_with_positions_of_their_own() -> None:
    found = delivered(batch(MESSAGES, epoch=3, next_offset=950), wanted(chunk_records=300))
    assert messages(found) == MESSAGES
    assert [(len(p.chunk), p.position) for p in found] == [(300, 307), (300, 607), (293, 950)]
    assert {(p.record_epoch, p.batch_epoch) for p in found} == {(3, 3)}


def test_append_time_is_everyones() -> None:
    data = batch([RawRecord(b"x", i, 100 + i) for i in range(3)], attributes=8, max_timestamp=777)
    assert [m.timestamp for m in messages(delivered(data))] == [777] * 3


def test_a_batch_that_is_cut_off_is_left_for_the_next_answer() -> None:
    whole, next_one = batch(MESSAGES[:3]), batch(MESSAGES[3:5])
    for cut in range(len(next_one)):
        assert messages(delivered(whole + next_one[:cut])) == MESSAGES[:3]


class TestTransactions:
    def test_what_was_aborted_is_dropped_until_its_marker(self) -> None:
        data = b"".join(
            [
                batch([RawRecord(b"a", 0, 1)], attributes=TRANSACTIONAL, producer=7),
                batch([RawRecord(b"b", 1, 1)], attributes=TRANSACTIONAL, producer=8),
                batch([RawRecord(b"c", 2, 1)]),
                batch([RawRecord(b"d", 3, 1)], producer=7),
                marker(4, 7, ABORT),
                batch([RawRecord(b"e", 5, 1)], attributes=TRANSACTIONAL, producer=7),
                marker(6, 8, COMMIT),
                marker(7, 7, COMMIT),
            ]
        )
        assert offsets(data, (7, 0)) == [1, 2, 3, 5]
        assert offsets(data) == [0, 1, 2, 3, 5]
        assert delivered(data)[-1].position == 8

    def test_a_transaction_that_begins_later_drops_nothing_before(self) -> None:
        data = b"".join(
            [
                batch([RawRecord(b"a", 0, 1)], attributes=TRANSACTIONAL, producer=7),
                marker(1, 7, COMMIT),
                batch([RawRecord(b"b", 2, 1)], attributes=TRANSACTIONAL, producer=7),
                marker(3, 7, ABORT),
                batch([RawRecord(b"c", 4, 1)], attributes=TRANSACTIONAL, producer=7),
                marker(5, 7, ABORT),
            ]
        )
        assert offsets(data, (7, 4), (7, 2)) == [0]

    def test_a_marker_of_another_producer_ends_nothing(self) -> None:
        data = b"".join(
            [
                batch([RawRecord(b"a", 0, 1)], attributes=TRANSACTIONAL, producer=7),
                marker(1, 8, ABORT),
                batch([RawRecord(b"b", 2, 1)], attributes=TRANSACTIONAL, producer=7),
            ]
        )
        assert offsets(data, (7, 0)) == []

    def test_a_marker_without_a_type_is_damaged(self) -> None:
        control = batch([RawRecord(b"", 1, 0, b"\x00")], attributes=16 | 32, producer=7)
        with pytest.raises(Damaged, match="control"):
            offsets(control, (7, 0))


class TestDamage:
    @pytest.mark.parametrize("at", [21, 40, 60, 61, 100, -1])
    def test_a_changed_byte_is_noticed(self, at: int) -> None:
        data = bytearray(batch(MESSAGES[:20]))
        data[at] ^= 1
        with pytest.raises(Damaged, match="batch of offsets 5 to 26: its checksum"):
            delivered(bytes(data))

    @pytest.mark.parametrize("magic", [0, 1])
    def test_old_formats_are_for_librdkafka(self, magic: int) -> None:
        old = struct.pack(">qiIb", 0, 20, 0, magic) + bytes(15)
        with pytest.raises(NotSpoken, match="old format"):
            delivered(old)

    @pytest.mark.parametrize(
        "head",
        [
            {"records": -1},
            {"records": 2**31 - 1},
            {"last": -2},
            {"last": 1},
            {"base": -5},
            {"base": 2**62},
            {"attributes": 5},
        ],
    )
    def test_numbers_that_cannot_be_are_refused(self, head: dict[str, int]) -> None:
        facts = {"base": 0, "epoch": 0, "attributes": 0, "last": 2, "stamp": 1, "latest": 1, "producer": -1}
        facts |= {"records": 3} | head
        three = b"".join(record(RawRecord(b"v", n, 1), n, 0) for n in range(3))
        with pytest.raises(Damaged):
            delivered(seal(three, tuple(facts.values())))

    def test_batches_in_the_wrong_order_are_refused(self) -> None:
        with pytest.raises(Damaged, match="after one until"):
            delivered(batch(MESSAGES[3:9]) + batch(MESSAGES[:3]))

    @pytest.mark.parametrize("records", [2, 4])
    def test_more_or_fewer_records_than_there_are_are_refused(self, records: int) -> None:
        three = b"".join(record(RawRecord(b"v", n, 1), n, 0) for n in range(3))
        with pytest.raises(Damaged, match="records"):
            delivered(seal(three, (0, 0, 0, 9, 1, 1, -1, records)))

    def test_offsets_that_go_back_are_refused(self) -> None:
        two = record(RawRecord(b"v", 1, 1), 1, 0) + record(RawRecord(b"v", 1, 1), 1, 0)
        with pytest.raises(Damaged):
            delivered(seal(two, (0, 0, 0, 9, 1, 1, -1, 2)))

    @pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy", "xerial"])
    def test_a_batch_that_would_fill_the_memory_is_refused_before_it_is_unpacked(self, codec: str) -> None:
        bomb = batch([RawRecord(bytes(64 << 20), 5, 1)], codec=codec)
        assert len(bomb) < 4_000_000
        data = as_bytes(batch([RawRecord(b"v", 0, 1)]), bomb)
        delivered(batch(MESSAGES[:2]))  # kernels are loaded, and not counted
        tracemalloc.start()
        found = []
        with pytest.raises(DamagedBatch, match="would unpack to") as caught:
            for part in deliver(
                survey(data, 0, len(data)), wanted(0, most_bytes=5_000_000), NO_ABORTED, data
            ):
                found.append(part)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (caught.value.first, caught.value.until, caught.value.is_oversized) == (5, 6, True)
        assert [part.position for part in found] == [5]
        assert peak < 16_000_000

    def test_many_small_records_count_by_the_memory_of_their_fields(self) -> None:
        few = batch([RawRecord(None, n, 0) for n in range(1_000)])
        with pytest.raises(DamagedBatch, match="would unpack to 64000 bytes") as caught:
            delivered(few, wanted(most_bytes=60_000))
        assert caught.value.is_oversized

    @pytest.mark.parametrize("bad", range(4))
    @pytest.mark.parametrize("is_parsed", [False, True])
    def test_everything_before_a_damaged_batch_is_delivered(self, bad: int, is_parsed: bool) -> None:
        batches = [batch([RawRecord(b"v%d" % n, 10 * i + n, 1) for n in range(9)]) for i in range(4)]
        whole = bytearray(batches[bad])
        whole[70] ^= 0x40
        batches[bad] = (
            seal(bytes(whole[61:]), (10 * bad, 0, 0, 8, 1, 1, -1, 9)) if is_parsed else bytes(whole)
        )
        data, found = as_bytes(*batches), []
        with pytest.raises(DamagedBatch) as caught:
            for part in deliver(survey(data, 0, len(data)), wanted(chunk_records=20), NO_ABORTED, data):
                found.append(part)
        assert (caught.value.first, caught.value.until) == (10 * bad, 10 * bad + 9)
        assert [m.offset for m in messages(found)] == [10 * i + n for i in range(bad) for n in range(9)]
        assert [part.position for part in found][-1:] == ([10 * bad] if bad else [])

    @pytest.mark.parametrize(("codec", "part"), [("zstd", b"\x00\x00\x00"), ("lz4", b"\x01\x00\x00\x80\x00")])
    def test_blocks_without_end_are_refused(self, codec: str, part: bytes) -> None:
        head = (
            bytes(PACK["zstd"][1](b""))[:6]
            if codec == "zstd"
            else struct.pack("<IBBB", 0x184D2204, 0x60, 0x40, 0)
        )
        with pytest.raises(Damaged, match="more than 100000 blocks"):
            codecs.room(PACK[codec][0], as_bytes(head + part * 200_000), 2**28)

    @pytest.mark.parametrize(
        ("codec", "packed"),
        [
            ("gzip", bytes(PACK["gzip"][1](b"x")) * 99_000),
            (
                "lz4",
                struct.pack("<IBBB", 0x184D2204, 0x60, 0x40, 0) + b"\x01\x00\x00\x80x" * 99_000 + bytes(4),
            ),
            ("snappy", b"\x82SNAPPY\x00" + bytes(8) + (struct.pack(">i", 3) + b"\x01\x00x") * 99_000),
            ("zstd", bytes(PACK["zstd"][1](b"x")) * 99_000),
        ],
        ids=lambda part: part if isinstance(part, str) else "",
    )
    def test_the_most_blocks_that_a_batch_may_have_unpack_within_seconds(
        self, codec: str, packed: bytes
    ) -> None:
        """Bytes and blocks are bounded, so the time is: a fifth of a second at most, measured; 5 leave room."""
        data, began = as_bytes(packed), time.process_time()
        size = codecs.room(PACK[codec][0], data, 2**28)
        out = np.empty(size, np.uint8)
        assert (size, codecs.unpack(PACK[codec][0], data, out)) == (99_000, 99_000)
        assert bytes(out[:9]) == b"x" * 9
        assert time.process_time() - began < 5

    def test_headers_that_do_not_parse_stop_nothing(self) -> None:
        names = [
            RawRecord(b"v", 0, 1, None, (("\udcff", b"1"),)),
            RawRecord(b"w", 1, 1, None, (("fine", b"2"),)),
        ]
        whole = record(RawRecord(b"x", 2, 1), 0, 0)
        three_announced = seal(whole[:-1] + b"\x06", (2, 0, 0, 0, 1, 1, -1, 1))
        found = messages(delivered(batch(names) + three_announced))
        assert [m.value for m in found] == [b"v", b"w", b"x"]
        assert [m.headers for m in found] == [
            (("kbq_unreadable_headers", None),),
            (("fine", b"2"),),
            (("kbq_unreadable_headers", None),),
        ]


@pytest.mark.parametrize("codec", PACK)
def test_mutated_records_are_refused_or_read_but_nothing_else(codec: str) -> None:
    """Behind a checksum that fits: what the checksum cannot notice must not crash, hang or read out of bounds."""
    source = random.Random(codec)
    packed = bytearray(batch(MESSAGES[:40], codec=codec)[61:])
    seen = {True: 0, False: 0}
    for _ in range(1_500):
        mutated = bytearray(packed)
        for _ in range(source.randint(1, 3)):
            byte = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
            mutated[source.randrange(len(mutated))] = byte
        if source.random() < 0.2:
            del mutated[source.randrange(len(mutated)) :]
        head = (5, 0, PACK[codec][0], 894, 1_000, 1_000, -1, 40)
        try:
            found = delivered(seal(bytes(mutated), head))
        except FetchFailure:
            seen[False] += 1
            continue
        seen[True] += 1
        messages(found)
        for part in found:
            assert (np.diff(part.chunk.offsets) > 0).all()
            assert part.chunk.ends.max(initial=0) <= len(part.chunk.buffer)
    assert seen[False] > 100


def test_mutated_answers_are_refused_or_read_but_nothing_else() -> None:
    source = random.Random(1)
    data = batch(MESSAGES[:40]) + marker(900, 3, ABORT) + batch([RawRecord(b"z", 901, 1)], codec="lz4")
    for _ in range(3_000):
        mutated = bytearray(data)
        for _ in range(source.randint(1, 3)):
            mutated[source.randrange(len(mutated))] = source.randrange(256)
        try:
            found = delivered(bytes(mutated), aborted=[(3, 0)])
        except FetchFailure:
            continue
        positions = [part.position for part in found]
        assert positions == sorted(set(positions))


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("size", [0, 1, 3, 4, 6, 15, 40])
def test_noise_is_damaged_for_every_codec(codec: int, size: int) -> None:
    noise = as_bytes(random.Random(size).randbytes(size))
    out = np.empty(2**16, np.uint8)
    with pytest.raises(Damaged):
        room = codecs.room(codec, noise, len(out))
        codecs.unpack(codec, noise, out[:room])
