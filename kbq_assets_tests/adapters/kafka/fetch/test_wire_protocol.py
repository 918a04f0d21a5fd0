"""Requests and answers of Kafka's protocol, byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.adapters.kafka.fetch import wire_protocol
from kbq_assets.adapters.kafka.fetch.errors import NO_BROKER, Damaged
from kbq_assets.adapters.kafka.fetch.wire_protocol import (
    API_VERSIONS,
    FETCH,
    METADATA,
    Api,
    BrokerAddress,
    PartitionLeader,
    ResponseReader,
)
from kbq_assets.core.protocol.offsets import TopicPartition

TP = TopicPartition("t", 3)


def reading(*parts: bytes) -> ResponseReader:
    return ResponseReader(memoryview(b"".join(parts)))


def text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value.encode())) + value.encode()


def array(*items: bytes) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


NULL_ARRAY = struct.pack(">i", -1)


def node(number: int, host: str, port: int, rack: str | None = None) -> bytes:
    return struct.pack(">i", number) + text(host) + struct.pack(">i", port) + text(rack)


def partition(
    index: int, leader: int, epoch: int, *, error: int = 0, replicas: tuple[int, int, int] = (1, 2, 0)
) -> bytes:
    sets = b"".join(struct.pack(">i", count) + bytes(4 * max(count, 0)) for count in replicas)
    return struct.pack(">hiii", error, index, leader, epoch) + sets


def topic(name: str | None, *partitions: bytes, error: int = 0) -> bytes:
    return struct.pack(">h", error) + text(name) + b"\0" + array(*partitions)


def metadata(nodes: bytes, topics: bytes) -> bytes:
    throttled, controller = struct.pack(">i", 5), struct.pack(">i", 1)
    return throttled + nodes + text("cluster") + controller + topics


def fetched(
    tp: TopicPartition = TP,
    *,
    error: int = 0,
    aborted: bytes = NULL_ARRAY,
    records: bytes | None = b"",
) -> bytes:
    size = struct.pack(">i", -1 if records is None else len(records)) + (records or b"")
    one = struct.pack(">ihqqq", tp.partition, error, 100, 90, 7) + aborted + size
    return bytes(10) + array(text(tp.topic) + array(one))


class TestNumbersAndTexts:
    @pytest.mark.parametrize(
        ("read", "bits", "code"),
        [
            (ResponseReader.int8, 8, ">b"),
            (ResponseReader.int16, 16, ">h"),
            (ResponseReader.int32, 32, ">i"),
            (ResponseReader.int64, 64, ">q"),
        ],
        ids=["int8", "int16", "int32", "int64"],
    )
    def test_a_number_is_signed_and_ends_where_the_next_begins(
        self, read: Callable[[ResponseReader], int], bits: int, code: str
    ) -> None:
        numbers = [0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
        reply = reading(*(struct.pack(code, number) for number in numbers))
        assert [read(reply) for _ in numbers] == numbers
        assert reply.position == len(numbers) * bits // 8
        with pytest.raises(Damaged, match="do not fit"):
            read(reply)

    @pytest.mark.parametrize("missing", [1, 2, 3])
    def test_a_number_that_ends_too_soon_is_damage_and_moves_nothing(self, missing: int) -> None:
        reply = reading(bytes(4 - missing))
        with pytest.raises(Damaged, match=f"4 bytes do not fit into an answer of {4 - missing}"):
            reply.int32()
        assert reply.position == 0

    def test_a_negative_size_is_damage(self) -> None:
        with pytest.raises(Damaged):
            reading(bytes(4)).skip(-1)

    def test_damage_advises_where_to_look(self) -> None:
        with pytest.raises(Damaged) as raised:
            reading().int8()
        assert raised.value.advice == NO_BROKER

    @pytest.mark.parametrize(
        ("sent", "read"),
        [(text(""), ""), (text(None), ""), (text("é"), "é"), (b"\0\2\xffa", "\ufffda"), (b"\x80\0", "")],
        ids=["empty", "null", "two bytes", "not UTF-8", "the lowest length"],
    )
    def test_a_text_is_read_whatever_its_bytes_are(self, sent: bytes, read: str) -> None:
        reply = reading(sent, b"!")
        assert reply.text() == read
        assert reply.position == len(sent)

    @pytest.mark.parametrize("length", [-(2**31), -1, 0, 3])
    def test_bytes_are_copied_and_null_is_empty(self, length: int) -> None:
        data = bytearray(struct.pack(">i", length) + b"abc")
        found = ResponseReader(memoryview(data)).blob()
        data[4:] = b"xyz"
        assert found == b"abc"[: max(length, 0)]

    @pytest.mark.parametrize(
        ("length", "read"), [(">h", ResponseReader.text), (">i", ResponseReader.blob)], ids=["text", "blob"]
    )
    def test_a_length_beyond_the_answer_is_damage(
        self, length: str, read: Callable[[ResponseReader], Any]
    ) -> None:
        with pytest.raises(Damaged, match="4 bytes do not fit"):
            read(reading(struct.pack(length, 4), b"abc"))

    def test_a_text_is_sent_with_its_length_in_bytes(self) -> None:
        assert wire_protocol.text("aé") == b"\0\3a\xc3\xa9"

    @given(st.text(max_size=100))
    @settings(max_examples=30)
    def test_every_text_comes_back(self, value: str) -> None:
        assert reading(wire_protocol.text(value)).text() == value


class TestArrays:
    @pytest.mark.parametrize(
        ("size", "items"), [(-(2**31), []), (-1, []), (0, []), (1, [1]), (2, [1, 2])], ids=str
    )
    def test_as_many_items_as_it_says(self, size: int, items: list[int]) -> None:
        reply = reading(struct.pack(">i", size), b"\1\2\3")
        assert reply.array(reply.int8, 2) == items
        assert reply.position == 4 + len(items)

    @pytest.mark.parametrize(("most", "limit"), [(2, "at most 2"), (1, "1")])
    def test_one_more_than_the_limit_is_damage_before_any_item_is_read(self, most: int, limit: str) -> None:
        reply = reading(struct.pack(">i", most + 1), bytes(9))
        with pytest.raises(Damaged, match=f"an answer about {most + 1} items instead of {limit}$"):
            reply.array(reply.int8, most)
        assert reply.position == 4

    @pytest.mark.parametrize("size", [-1, 0, 1, 3])
    def test_pairs_are_rows_of_native_numbers(self, size: int) -> None:
        rows = [[7, -(2**63)], [2**63 - 1, 0], [1, 2]][: max(size, 0)]
        sent = b"".join(struct.pack(">qq", *row) for row in rows)
        reply = reading(struct.pack(">i", size), sent, b"!")
        found = reply.pairs(3)
        assert (found.tolist(), found.shape, found.dtype.str) == (rows, (max(size, 0), 2), "<i8")
        assert reply.position == 4 + len(sent)

    def test_pairs_have_a_limit_and_an_end(self) -> None:
        with pytest.raises(Damaged, match="4 pairs, more than the limit of 3"):
            reading(struct.pack(">i", 4), bytes(64)).pairs(3)
        with pytest.raises(Damaged, match="48 bytes do not fit"):
            reading(struct.pack(">i", 3), bytes(47)).pairs(3)


class TestRequests:
    @pytest.mark.parametrize("body", [b"", b"body"])
    def test_a_frame_begins_with_the_length_of_all_that_follows(self, body: bytes) -> None:
        found = wire_protocol.frame(Api("X", 7, 3), -2, "kbq", body)
        assert struct.unpack(">i", found[:4]) == (len(found) - 4,)
        assert found[4:] == struct.pack(">hhi", 7, 3, -2) + b"\0\3kbq" + body

    def test_metadata_of_one_topic_creates_no_topic(self) -> None:
        assert wire_protocol.metadata_request("ab") == b"\0\0\0\1\0\2ab\0"

    def test_the_end_of_an_epoch(self) -> None:
        reply = reading(wire_protocol.epoch_end_request(TP, 9, 8))
        assert (reply.int32(), reply.text(), reply.int32()) == (1, "t", 1)
        assert [reply.int32() for _ in range(3)] == [3, 9, 8]
        with pytest.raises(Damaged):
            reply.int8()

    @pytest.mark.parametrize(("seconds", "millis"), [(0.0, 0), (0.0019, 1), (2.5, 2500)])
    def test_a_fetch_is_for_committed_records_outside_of_a_session(self, seconds: float, millis: int) -> None:
        request = wire_protocol.fetch_request(TP, 5, 2**40, max_bytes=1000, wait_seconds=seconds)
        reply = reading(request)
        assert [reply.int32() for _ in range(4)] == [-1, millis, 1, 1000]
        assert (reply.int8(), reply.int32(), reply.int32()) == (1, 0, -1)
        assert (reply.int32(), reply.text(), reply.int32()) == (1, "t", 1)
        assert (reply.int32(), reply.int32(), reply.int64()) == (3, 5, 2**40)
        assert (reply.int64(), reply.int32(), reply.int32()) == (-1, 1000, 0)
        assert reply.position == len(request)


class TestVersions:
    def test_each_key_has_its_range(self) -> None:
        sent = struct.pack(">h", 0) + array(struct.pack(">hhh", 1, 4, 17), struct.pack(">hhh", 3, 0, 13))
        assert wire_protocol.parse_api_versions(reading(sent)) == {1: (4, 17), 3: (0, 13)}

    def test_an_error_is_damage_that_names_it(self) -> None:
        with pytest.raises(Damaged, match="ApiVersions with error 35"):
            wire_protocol.parse_api_versions(reading(struct.pack(">h", 35) + array()))


class TestMetadata:
    def test_leaders_have_addresses_and_epochs(self) -> None:
        nodes = array(node(1, "a", 9092, "rack"), node(2, "b", 9093))
        topics = array(topic("t", partition(0, 1, 5), partition(3, 2, 6), partition(1, 1, 0)))
        found = wire_protocol.parse_metadata(reading(metadata(nodes, topics)), "t")
        a, b = BrokerAddress("a", 9092), BrokerAddress("b", 9093)
        assert found.error == 0
        assert found.partitions == {
            0: PartitionLeader(a, 5),
            3: PartitionLeader(b, 6),
            1: PartitionLeader(a, 0),
        }

    @pytest.mark.parametrize(("leader", "error"), [(-1, 5), (7, 0)], ids=["no leader", "an unknown node"])
    def test_a_partition_without_a_known_leader_has_no_address(self, leader: int, error: int) -> None:
        topics = array(topic("t", partition(0, leader, -1, error=error)))
        found = wire_protocol.parse_metadata(reading(metadata(array(node(1, "a", 1)), topics)), "t")
        assert found.partitions == {0: PartitionLeader(None, -1, error)}

    @pytest.mark.parametrize("replicas", [(0, 0, 0), (-1, -1, -1), (3, 3, 1)])
    def test_replicas_are_passed_over(self, replicas: tuple[int, int, int]) -> None:
        topics = array(topic("t", partition(0, 1, 5, replicas=replicas), partition(1, 1, 6)))
        found = wire_protocol.parse_metadata(reading(metadata(array(node(1, "a", 1)), topics)), "t")
        assert {number: leader.epoch for number, leader in found.partitions.items()} == {0: 5, 1: 6}

    def test_an_error_of_the_topic_is_its_answer(self) -> None:
        found = wire_protocol.parse_metadata(reading(metadata(NULL_ARRAY, array(topic("t", error=3)))), "t")
        assert (found.error, found.partitions) == (3, {})

    @pytest.mark.parametrize("topics", [array(), NULL_ARRAY, array(topic("u")), array(topic(None))])
    def test_an_answer_about_other_topics_is_damage(self, topics: bytes) -> None:
        with pytest.raises(Damaged, match="other topics than t"):
            wire_protocol.parse_metadata(reading(metadata(array(), topics)), "t")


class TestEpochEnds:
    @staticmethod
    def sent(name: str, number: int, *, error: int = 0, epoch: int = 4, offset: int = 77) -> bytes:
        one = struct.pack(">hiiq", error, number, epoch, offset)
        return bytes(4) + array(text(name) + array(one))

    @pytest.mark.parametrize("values", [(0, 4, 77), (0, -1, -1), (74, -1, -1), (0, 0, 2**62)], ids=str)
    def test_error_epoch_and_end(self, values: tuple[int, int, int]) -> None:
        error, epoch, offset = values
        sent = self.sent("t", 3, error=error, epoch=epoch, offset=offset)
        assert wire_protocol.parse_epoch_end(reading(sent), TP) == values


class TestFetched:
    def test_records_are_a_span_of_the_answer(self) -> None:
        aborted = struct.pack(">iqqqq", 2, 7, 10, 8, 20)
        sent = fetched(aborted=aborted, records=b"batches")
        found = wire_protocol.parse_fetch(reading(sent), TP)
        assert (found.error, found.last_stable_offset, found.aborted.tolist()) == (0, 90, [[7, 10], [8, 20]])
        assert sent[found.records_from : found.records_until] == b"batches"

    @pytest.mark.parametrize("records", [None, b""], ids=["null", "empty"])
    def test_an_answer_may_have_no_records(self, records: bytes | None) -> None:
        found = wire_protocol.parse_fetch(reading(fetched(records=records, error=1)), TP)
        assert (found.error, found.records_until - found.records_from, len(found.aborted)) == (1, 0, 0)

    def test_an_error_of_the_whole_answer_is_the_partitions(self) -> None:
        found = wire_protocol.parse_fetch(reading(struct.pack(">ihi", 0, 70, 0)), TP)
        assert (found.error, found.last_stable_offset, found.aborted.shape) == (70, -1, (0, 2))
        assert found.records_from == found.records_until == 0


@pytest.mark.parametrize("parse", [wire_protocol.parse_fetch, wire_protocol.parse_epoch_end])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (TopicPartition("u", 3), r"about u\[3\] instead of t\[3\]"),
        (TopicPartition("t", 4), r"about t\[4\] instead of t\[3\]"),
        (TopicPartition("x" * 300, 3), rf"about {'x' * 249}\[3\]"),
    ],
    ids=["topic", "partition", "a name as long as no topic's"],
)
def test_an_answer_about_another_partition_is_damage(
    parse: Callable[[ResponseReader, TopicPartition], Any], other: TopicPartition, message: str
) -> None:
    sent = fetched(other) if parse is wire_protocol.parse_fetch else TestEpochEnds.sent(*other)
    with pytest.raises(Damaged, match=message):
        parse(reading(sent), TP)


@pytest.mark.parametrize("topics", [array(), NULL_ARRAY, array(text("t") + array())], ids=["0", "null", "no"])
def test_an_answer_about_no_partition_is_damage(topics: bytes) -> None:
    with pytest.raises(Damaged, match=r"no partition instead of t\[3\]"):
        wire_protocol.parse_fetch(reading(bytes(10), topics), TP)
    with pytest.raises(Damaged, match=r"no partition instead of t\[3\]"):
        wire_protocol.parse_epoch_end(reading(bytes(4), topics), TP)


class TestLogins:
    @pytest.mark.parametrize("offered", [(), ("PLAIN",), ("PLAIN", "SCRAM-SHA-512")], ids=str)
    def test_a_handshake_offers_mechanisms(self, offered: tuple[str, ...]) -> None:
        sent = struct.pack(">h", 33) + array(*map(text, offered))
        assert wire_protocol.parse_handshake(reading(sent)) == (33, list(offered))

    @pytest.mark.parametrize(("sent", "read"), [(None, ""), ("no", "no")])
    def test_an_authentication_has_an_error_a_text_and_bytes(self, sent: str | None, read: str) -> None:
        reply = reading(struct.pack(">h", 58), text(sent), struct.pack(">i", 2), b"\xff\0")
        assert wire_protocol.parse_authenticate(reply) == (58, read, b"\xff\0")


WHOLE: dict[str, tuple[bytes, Callable[[ResponseReader], Any]]] = {
    "versions": (bytes(2) + array(bytes(6), bytes(6)), wire_protocol.parse_api_versions),
    "metadata": (
        metadata(array(node(1, "a", 1, "r")), array(topic("t", partition(0, 1, 5)))),
        lambda reply: wire_protocol.parse_metadata(reply, "t"),
    ),
    "epoch end": (TestEpochEnds.sent("t", 3), lambda reply: wire_protocol.parse_epoch_end(reply, TP)),
    "fetch": (
        fetched(aborted=struct.pack(">iqq", 1, 7, 10), records=b"batches"),
        lambda reply: wire_protocol.parse_fetch(reply, TP),
    ),
    "handshake": (bytes(2) + array(text("PLAIN")), wire_protocol.parse_handshake),
    "authenticate": (bytes(2) + text("a") + struct.pack(">i", 1) + b"b", wire_protocol.parse_authenticate),
}


@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_that_ends_at_any_byte_is_damage(name: str) -> None:
    sent, parse = WHOLE[name]
    parse(reading(sent))
    for end in range(len(sent)):
        with pytest.raises(Damaged):
            parse(reading(sent[:end]))


@pytest.mark.parametrize("name", WHOLE)
@given(data=st.data())
@settings(max_examples=40)
def test_an_answer_with_any_bytes_changed_is_read_or_damage(name: str, data: st.DataObject) -> None:
    sent, parse = WHOLE[name]
    changed = bytearray(sent)
    for at in data.draw(st.lists(st.integers(0, len(sent) - 1), max_size=4)):
        changed[at] = data.draw(st.integers(0, 255))
    reply = ResponseReader(memoryview(changed))
    try:
        parse(reply)
    except Damaged:
        return
    assert reply.position <= len(changed)


def test_what_an_answer_may_hold_depends_on_its_request() -> None:
    assert FETCH.most_bytes == 0, "the access's limit"
    assert 0 < API_VERSIONS.most_bytes < METADATA.most_bytes


@pytest.mark.parametrize(
    ("api", "key", "version"),
    [
        (FETCH, 1, 10),
        (METADATA, 3, 7),
        (wire_protocol.SASL_HANDSHAKE, 17, 1),
        (API_VERSIONS, 18, 0),
        (wire_protocol.EPOCH_END, 23, 2),
        (wire_protocol.SASL_AUTHENTICATE, 36, 0),
    ],
    ids=lambda part: part.name if isinstance(part, Api) else "",
)
def test_requests_have_the_keys_of_kafka_and_the_versions_that_are_parsed(
    api: Api, key: int, version: int
) -> None:
    assert (api.key, api.version) == (key, version)


@pytest.mark.parametrize("of", ["topics", "partitions"])
@pytest.mark.parametrize("name", ["metadata", "epoch end", "fetch"])
def test_an_answer_about_two_things_is_damage(name: str, of: str) -> None:
    one_end = struct.pack(">hiiq", 0, 3, 4, 77)
    one_fetched = struct.pack(">ihqqq", 3, 0, 100, 90, 7) + NULL_ARRAY + struct.pack(">i", 0)
    items = {"epoch end": (bytes(4), one_end), "fetch": (bytes(10), one_fetched)}
    if name == "metadata":
        sent = metadata(array(), array(topic("t"), topic("t")))
    else:
        head, item = items[name]
        whole = text("t") + array(item)
        sent = head + (array(whole, whole) if of == "topics" else array(text("t") + array(item, item)))
    with pytest.raises(Damaged, match="2 items instead of 1"):
        WHOLE[name][1](reading(sent))
