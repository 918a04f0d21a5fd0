"""The C interface gives what the objects give; kernels read what librdkafka's functions return."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, cast

import confluent_kafka
import numpy as np
import pytest

from kbq_assets.adapters.kafka import drain, native
from kbq_assets.adapters.kafka.source import KafkaSource, Reader
from kbq_assets.core.errors import ConfigurationError, EncoderMisuse
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.local.stack import LocalStack
from kbq_assets.ports.kafka import RecordBatch
from kbq_assets.wire.chunk import PADDING, RawRecord, decode_headers
from kbq_assets_tests.adapters.kafka.brokers import RealBroker, real_broker
from kbq_assets_tests.contracts.source import as_messages

pytest_plugins = ["kbq_assets_tests.fixtures.local_stack"]

Headers = Sequence[tuple[bytes, bytes | None]]

MESSAGES = [
    RawRecord(b"value", 0, 1_000, b"key", [("a", b"1"), ("a", b""), ("ü" * 70, None)]),
    RawRecord(None, 1, 2_000, b"", []),
    RawRecord(b"", 2, 3_000, None, [("large", b"x" * 70_000)]),
    RawRecord(b"v" * 5_000_000, 3, 4_000, b"k" * 100, [(str(n), b"%d" % n) for n in range(200)]),
    *(RawRecord(b"%d" % n, 4 + n, 5_000 + n) for n in range(3_000)),
]


@pytest.fixture
def broker(local_stack: LocalStack) -> Iterator[RealBroker]:
    yield from real_broker(local_stack.bootstrap_servers)


@pytest.mark.kafka
@pytest.mark.parametrize(("keys", "headers"), [(True, True), (True, False), (False, True), (False, False)])
def test_both_readers_give_the_same(broker: RealBroker, keys: bool, headers: bool) -> None:
    tp = TopicPartition(broker.create_topic(), 0)
    broker.produce(tp, MESSAGES)
    found: dict[str, list[RawRecord]] = {}
    readers: tuple[Reader, ...] = ("librdkafka", "objects")
    for reader in readers:
        source = KafkaSource(broker.bootstrap_servers, reader=reader)
        messages = found[reader] = []
        for batch in source.read(OffsetRange(tp, 0, len(MESSAGES)), keys=keys, headers=headers):
            # At once: headers that were not asked for can be had of the latest chunk alone.
            messages.extend(as_messages(batch.chunk))
        assert batch.position == len(MESSAGES)
        assert batch.leader_epoch == 0
    assert found["librdkafka"] == found["objects"]
    assert len(found["objects"]) == len(MESSAGES)


@pytest.mark.kafka
def test_a_chunk_holds_little_where_records_suddenly_are_large(broker: RealBroker) -> None:
    tp = TopicPartition(broker.create_topic(), 0)
    sizes = [10] * 5_000 + [1_000_000] * 40
    broker.produce(tp, [RawRecord(bytes(size), i, 1) for i, size in enumerate(sizes)])
    batches = list(broker.source.read(OffsetRange(tp, 0, len(sizes))))
    assert sum(len(batch.chunk) for batch in batches) == len(sizes)
    assert max(len(batch.chunk.buffer) for batch in batches) <= 5_000_000 + 10 * 1_000 + PADDING


@pytest.mark.kafka
def test_a_reading_given_up_half_way_leaves_nothing_open(broker: RealBroker) -> None:
    tp = TopicPartition(broker.create_topic(), 0)
    broker.produce(tp, [RawRecord(bytes(100), i, 1) for i in range(5_000)])
    for _ in range(5):
        reading = broker.source.read(OffsetRange(tp, 0, 5_000))
        next(reading)
        cast(Generator[RecordBatch, None, None], reading).close()
    assert len(list(broker.source.read(OffsetRange(tp, 0, 5_000)))) > 0


@pytest.mark.kafka
def test_headers_of_an_earlier_chunk_are_refused(broker: RealBroker) -> None:
    tp = TopicPartition(broker.create_topic(), 0)
    broker.produce(tp, [RawRecord(bytes(100), i, 1) for i in range(5_000)])
    first, *_ = list(broker.source.read(OffsetRange(tp, 0, 5_000)))
    with pytest.raises(EncoderMisuse, match="earlier chunk"):
        first.chunk.header_bytes(0)


@pytest.mark.parametrize("reader", ["librdkafka", "objects"])
def test_what_librdkafka_refuses_is_a_configuration_error(reader: Reader) -> None:
    source = KafkaSource("127.0.0.1:1", {"security.protocol": "sideways"}, reader=reader)
    with pytest.raises(ConfigurationError, match=r"Kafka client: .*security\.protocol"):
        list(source.read(OffsetRange(TopicPartition("t", 0), 0, 1)))


def test_another_version_of_the_library_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.library() is not None
    native.library.cache_clear()
    monkeypatch.setattr(confluent_kafka, "libversion", lambda: ("0.0.1", 1))
    try:
        assert native.library() is None
        assert KafkaSource("127.0.0.1:1")._reader == "objects"
    finally:
        native.library.cache_clear()


class FakeHeaders:
    """The three functions of librdkafka's that give headers, over headers of our own; None: no headers."""

    def __init__(self, headers: Headers | None) -> None:
        self._headers = headers
        # What addresses point to must stay.
        self._buffers = [
            (ctypes.create_string_buffer(name), None if value is None else ctypes.create_string_buffer(value))
            for name, value in headers or ()
        ]
        word, pointer = ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
        self._functions: list[Any] = [
            ctypes.CFUNCTYPE(word, word, pointer)(self._message_headers),
            ctypes.CFUNCTYPE(word, word)(lambda headers: len(self._headers or ())),
            ctypes.CFUNCTYPE(word, word, word, pointer, pointer, pointer)(self._get_all),
        ]
        self._words = np.zeros(3, np.int64)

    @property
    def functions(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """As kernels take them."""
        at: Callable[[Any], int] = lambda f: ctypes.cast(f, ctypes.c_void_p).value or 0  # noqa: E731
        return drain.addresses(*map(at, self._functions), self._words.ctypes.data)

    def _message_headers(self, message: int, out: Any) -> int:
        out[0] = 1
        return -156 if self._headers is None else 0

    def _get_all(self, headers: int, index: int, name: Any, value: Any, size: Any) -> int:
        assert self._headers is not None
        key, content = self._buffers[index]
        name[0] = ctypes.addressof(key)
        value[0] = 0 if content is None else ctypes.addressof(content)
        size[0] = len(self._headers[index][1] or b"")
        return 0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, []),
        ([], []),
        ([(b"a", b"1")], [("a", b"1")]),
        ([(b"", None), (b"a", b"\x00\xff")], [("", None), ("a", b"\x00\xff")]),
        ([("é".encode(), b"x" * 300)] * 70, [("é", b"x" * 300)] * 70),
        ([(b"fine", b"1"), (b"\xff", b"2")], [("kbq_unreadable_headers", None)]),
        ([(b"\xed\xa0\x80", None)], [("kbq_unreadable_headers", None)]),
    ],
)
def test_headers_become_avro_and_unreadable_names_stop_nothing(
    headers: Headers | None, expected: list[tuple[str, bytes | None]]
) -> None:
    fake = FakeHeaders(headers)
    functions = fake.functions
    messages, kinds = np.array([1, 2, 3], np.int64), np.array([0, drain.EVENT, 0], np.uint8)
    room = drain.headers_room(messages, 3, kinds, functions)
    buffer = np.zeros(room + PADDING, np.uint8)
    starts, ends = np.empty(2, np.int64), np.empty(2, np.int64)
    unreadable = np.frombuffer(bytearray(native.UNREADABLE_HEADERS), np.uint8)
    drain.copy_headers(messages, 3, kinds, functions, unreadable, buffer, starts, ends)
    assert ends[-1] <= room
    for start, end in zip(starts, ends, strict=True):
        assert decode_headers(buffer[start:end].tobytes()) == expected
