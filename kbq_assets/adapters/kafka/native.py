"""librdkafka's consumer by its C interface, from the library inside confluent-kafka's wheel.

confluent-kafka makes a Python object of every record, which costs more than all the rest of an extraction. Here
kernels copy messages directly into a chunk's arrays. If the library cannot be found, or is not the one that
confluent-kafka uses, `library` is None and `KafkaSource` uses the objects.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaError
from numpy.typing import NDArray

from kbq_assets.adapters.kafka import drain
from kbq_assets.core.errors import EncoderMisuse
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.wire.chunk import NO_HEADERS, PADDING, UNREADABLE, Chunk, Spans, encode_headers

UNREADABLE_HEADERS: Final = encode_headers([(UNREADABLE, None)])
"""Replaces headers with a name that is not UTF-8: such a record must not stop its partition."""

_CONSUMER: Final = 1
_CONF_OK: Final = 0
#: Maximum messages per call to the queue: bytes and time are checked between calls.
_STEP: Final = 2_000
_ERROR_TEXT: Final = 512
_ONE_RECORD: Final = np.array([drain.RECORD], np.uint8)
#: From syslog's levels, which librdkafka uses, to Python's.
_LEVELS: Final = (
    *(logging.CRITICAL,) * 3,
    logging.ERROR,
    logging.WARNING,
    logging.INFO,
    logging.INFO,
    logging.DEBUG,
)

_Pointer = ctypes.c_void_p
_ON_ERROR = ctypes.CFUNCTYPE(None, _Pointer, ctypes.c_int, ctypes.c_char_p, _Pointer)
_ON_LOG = ctypes.CFUNCTYPE(None, _Pointer, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)

#: Every function used: result, arguments.
_PROTOTYPES: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "rd_kafka_version": (ctypes.c_int, ()),
    "rd_kafka_conf_new": (_Pointer, ()),
    "rd_kafka_conf_destroy": (None, (_Pointer,)),
    "rd_kafka_conf_set": (
        ctypes.c_int,
        (_Pointer, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t),
    ),
    "rd_kafka_conf_set_error_cb": (None, (_Pointer, _ON_ERROR)),
    "rd_kafka_conf_set_log_cb": (None, (_Pointer, _ON_LOG)),
    "rd_kafka_new": (_Pointer, (ctypes.c_int, _Pointer, ctypes.c_char_p, ctypes.c_size_t)),
    "rd_kafka_destroy": (None, (_Pointer,)),
    "rd_kafka_set_log_queue": (ctypes.c_int, (_Pointer, _Pointer)),
    "rd_kafka_poll_set_consumer": (ctypes.c_int, (_Pointer,)),
    "rd_kafka_queue_get_consumer": (_Pointer, (_Pointer,)),
    "rd_kafka_queue_destroy": (None, (_Pointer,)),
    "rd_kafka_fatal_error": (ctypes.c_int, (_Pointer, ctypes.c_char_p, ctypes.c_size_t)),
    "rd_kafka_err2str": (ctypes.c_char_p, (ctypes.c_int,)),
    "rd_kafka_topic_partition_list_new": (_Pointer, (ctypes.c_int,)),
    "rd_kafka_topic_partition_list_add": (_Pointer, (_Pointer, ctypes.c_char_p, ctypes.c_int32)),
    "rd_kafka_topic_partition_list_set_offset": (
        ctypes.c_int,
        (_Pointer, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64),
    ),
    "rd_kafka_topic_partition_set_leader_epoch": (None, (_Pointer, ctypes.c_int32)),
    "rd_kafka_topic_partition_list_destroy": (None, (_Pointer,)),
    "rd_kafka_assign": (ctypes.c_int, (_Pointer, _Pointer)),
    "rd_kafka_consume_batch_queue": (ctypes.c_ssize_t, (_Pointer, ctypes.c_int, _Pointer, ctypes.c_size_t)),
    "rd_kafka_consumer_close": (ctypes.c_int, (_Pointer,)),
    "rd_kafka_message_leader_epoch": (ctypes.c_int32, (_Pointer,)),
    "rd_kafka_message_destroy": (None, (_Pointer,)),
    "rd_kafka_message_timestamp": (ctypes.c_int64, (_Pointer, _Pointer)),
    "rd_kafka_message_headers": (ctypes.c_int, (_Pointer, _Pointer)),
    "rd_kafka_header_cnt": (ctypes.c_size_t, (_Pointer,)),
    "rd_kafka_header_get_all": (
        ctypes.c_int,
        (_Pointer, ctypes.c_size_t, _Pointer, _Pointer, _Pointer),
    ),
}


@cache
def library() -> ctypes.CDLL | None:
    """librdkafka as confluent-kafka has loaded it, with prototypes; None if it is unavailable."""
    if sys.maxsize < 2**32 or sys.platform == "win32":
        return None  # the kernels expect messages in the ABI of 64-bit Unix
    for path in _candidates():
        try:
            found = ctypes.CDLL(str(path))
            for name, (result, arguments) in _PROTOTYPES.items():
                function = getattr(found, name)
                function.restype, function.argtypes = result, arguments
            if found.rd_kafka_version() == confluent_kafka.libversion()[1]:
                return found
        except (OSError, AttributeError):
            continue
    return None


def _candidates() -> list[Path]:
    package = Path(confluent_kafka.__file__).parent
    folders = (package.parent / "confluent_kafka.libs", package / ".dylibs")
    return [path for folder in folders for path in sorted(folder.glob("librdkafka*"))]


@dataclass(frozen=True)
class Arrived:
    """The messages of one call: records before the range's end, and the events among them.

    ``position`` is after the last record (or the range's end, if a record came from there or later), -1 without a
    record; ``end`` is the partition's end, -1 if it did not come; ``is_at_end``: an event came last.
    """

    chunk: Chunk
    position: int = -1
    end: int = -1
    is_at_end: bool = False
    errors: tuple[KafkaError, ...] = ()
    leader_epoch: int = -1


class NativeConsumer:
    """One consumer of one partition. Use it from one thread at a time, and `close` it.

    ``on_error`` gets errors that concern no partition. Raises ValueError, which may quote a value, if
    librdkafka refuses the configuration.
    """

    def __init__(
        self,
        configuration: Mapping[str, str | int | bool],
        on_error: Callable[[KafkaError], object],
        logger: logging.Logger,
    ) -> None:
        found = library()
        assert found is not None, "ask library() first"
        self._library = found
        self._on_error = on_error
        self._logger = logger
        # Kept alive as long as the client, which calls them.
        self._callbacks = (_ON_ERROR(self._take_error), _ON_LOG(self._take_log))
        self._client = self._open(configuration)
        # Log lines and errors arrive with the messages, in the reading thread.
        found.rd_kafka_poll_set_consumer(self._client)
        found.rd_kafka_set_log_queue(self._client, None)
        self._queue = found.rd_kafka_queue_get_consumer(self._client)
        self._words = np.zeros(3, np.int64)
        self._messages = np.zeros(_STEP, np.int64)
        self._kinds = np.zeros(_STEP, np.uint8)
        #: Messages held: those of the latest chunk, and later ones.
        self._count = 0
        #: How many of them are the latest chunk's. They stay until the next chunk, for their headers.
        self._taken = 0
        #: The number of their chunk.
        self._generation = 0

    def assign(self, tp: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Read ``tp`` from ``offset``. Raises ValueError if librdkafka refuses."""
        lib, topic = self._library, tp.topic.encode()
        partitions = lib.rd_kafka_topic_partition_list_new(1)
        try:
            added = lib.rd_kafka_topic_partition_list_add(partitions, topic, tp.partition)
            lib.rd_kafka_topic_partition_list_set_offset(partitions, topic, tp.partition, offset)
            lib.rd_kafka_topic_partition_set_leader_epoch(added, leader_epoch)
            code = lib.rd_kafka_assign(self._client, partitions)
        finally:
            lib.rd_kafka_topic_partition_list_destroy(partitions)
        if code:
            raise ValueError(self._text(code))

    def gather(
        self,
        records: int,
        size: int,
        until: int,
        *,
        keys: bool,
        headers: bool,
        first_seconds: float,
        more_seconds: float,
    ) -> Arrived:
        """Messages: waits ``first_seconds`` for the first, then ``more_seconds`` for more, up to ``records`` or about
        ``size`` bytes."""
        self._give_back()
        self._make_room(records)
        sums = np.zeros(4, np.int64)
        taken = self._survey(0, records, size, until, sums)
        if not taken:
            self._consume(1, first_seconds)
            taken = self._survey(0, records, size, until, sums)
        deadline = time.monotonic() + more_seconds
        while 0 < taken == self._count < records and sums[1] < size and not sums[3]:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._consume(min(records - taken, _STEP), left)
            taken = self._survey(taken, records, size, until, sums)
        self._taken = taken
        return self._arrived(taken, until, sums, keys, headers)

    def close(self) -> None:
        """Close the consumer and free everything."""
        self._taken = self._count
        self._give_back()
        self._library.rd_kafka_consumer_close(self._client)
        self._library.rd_kafka_queue_destroy(self._queue)
        self._library.rd_kafka_destroy(self._client)

    def _open(self, configuration: Mapping[str, str | int | bool]) -> int:
        lib, text = self._library, ctypes.create_string_buffer(_ERROR_TEXT)
        conf = lib.rd_kafka_conf_new()
        lib.rd_kafka_conf_set_error_cb(conf, self._callbacks[0])
        lib.rd_kafka_conf_set_log_cb(conf, self._callbacks[1])
        for name, value in {**configuration, "log.queue": True}.items():
            encoded = (str(value).lower() if isinstance(value, bool) else str(value)).encode()
            if lib.rd_kafka_conf_set(conf, name.encode(), encoded, text, len(text)) != _CONF_OK:
                lib.rd_kafka_conf_destroy(conf)
                raise ValueError(text.value.decode(errors="replace"))
        client: int | None = lib.rd_kafka_new(_CONSUMER, conf, text, len(text))
        if not client:
            lib.rd_kafka_conf_destroy(conf)
            raise ValueError(text.value.decode(errors="replace"))
        return client

    def _make_room(self, records: int) -> None:
        if records + _STEP > len(self._messages):
            self._messages = np.concatenate((self._messages, np.zeros(records + _STEP, np.int64)))
            self._kinds = np.zeros(len(self._messages), np.uint8)

    def _consume(self, more: int, seconds: float) -> None:
        """Take up to ``more`` messages from librdkafka."""
        place = self._messages.ctypes.data + 8 * self._count
        milliseconds = max(1, int(seconds * 1000))
        got = self._library.rd_kafka_consume_batch_queue(self._queue, milliseconds, place, more)
        self._count += max(0, int(got))

    def _survey(self, taken: int, records: int, size: int, until: int, sums: NDArray[np.int64]) -> int:
        """The number of messages, with those ``taken``, that a chunk of ``size`` bytes holds.

        The rest waits for the next chunk, so copies stay small even if messages suddenly are large.
        """
        end = min(self._count, records)
        return int(drain.survey(self._messages, taken, end, until, size, self._kinds, sums))

    def _give_back(self) -> None:
        """Free the messages of the latest chunk."""
        taken, self._taken = self._taken, 0
        self._generation += 1
        drain.destroy(self._messages, taken, self._address("rd_kafka_message_destroy"))
        self._messages[: self._count - taken] = self._messages[taken : self._count].copy()
        self._count -= taken

    def _arrived(self, count: int, until: int, sums: NDArray[np.int64], keys: bool, headers: bool) -> Arrived:
        kinds = self._kinds[:count]
        chunk = self._chunk(count, sums, keys, headers)
        errors, end = self._events(np.flatnonzero(kinds == drain.EVENT)) if sums[3] else ((), -1)
        position, leader_epoch = -1, -1
        if len(chunk):
            position = int(chunk.offsets[-1]) + 1
            last = int(self._messages[np.flatnonzero(kinds == drain.RECORD)[-1]])
            leader_epoch = self._library.rd_kafka_message_leader_epoch(last)
        if (kinds == drain.BEYOND).any():
            position = until
        is_at_end = bool(count) and int(kinds[-1]) == drain.EVENT
        return Arrived(chunk, position, end, is_at_end, errors, leader_epoch)

    def _chunk(self, count: int, sums: NDArray[np.int64], keys: bool, headers: bool) -> Chunk:
        records, value_bytes, key_bytes, _ = sums.tolist()
        offsets, timestamps = np.empty(records, np.int64), np.empty(records, np.int64)
        function = self._address("rd_kafka_message_timestamp")
        drain.copy_facts(
            self._messages, count, self._kinds, function, self._words.ctypes.data, offsets, timestamps
        )
        values = self._spans(count, records, value_bytes, drain.PAYLOAD)
        return Chunk(
            values.buffer,
            values.starts,
            values.ends,
            offsets,
            timestamps,
            self._spans(count, records, key_bytes, drain.KEY) if keys else None,
            self._headers(self._messages, count, self._kinds, records) if headers else None,
            None if headers else self._late_headers(count),
        )

    def _spans(self, count: int, records: int, size: int, at: int) -> Spans:
        buffer, starts, ends = _empty_spans(records, size)
        drain.copy_spans(self._messages, count, self._kinds, at, buffer, starts, ends)
        return Spans(buffer, starts, ends)

    def _late_headers(self, count: int) -> Callable[[int], bytes]:
        generation = self._generation

        def headers_of(row: int) -> bytes:
            if generation != self._generation:
                raise EncoderMisuse("the headers of an earlier chunk are gone")
            index = np.flatnonzero(self._kinds[:count] == drain.RECORD)[row]
            message = self._messages[index : index + 1]
            return self._headers(message, 1, _ONE_RECORD, 1).get(0) or NO_HEADERS

        return headers_of

    def _headers(self, messages: Any, count: int, kinds: Any, records: int) -> Spans:
        names = ("rd_kafka_message_headers", "rd_kafka_header_cnt", "rd_kafka_header_get_all")
        functions = drain.addresses(*map(self._address, names), self._words.ctypes.data)
        room = drain.headers_room(messages, count, kinds, functions)
        buffer, starts, ends = _empty_spans(records, room)
        unreadable = np.frombuffer(bytearray(UNREADABLE_HEADERS), np.uint8)
        drain.copy_headers(messages, count, kinds, functions, unreadable, buffer, starts, ends)
        return Spans(buffer, starts, ends)

    def _events(self, indexes: NDArray[np.int64]) -> tuple[tuple[KafkaError, ...], int]:
        """Errors, and the partition's end (-1 if it did not come)."""
        errors, end = [], -1
        for index in indexes.tolist():
            message = int(self._messages[index])
            code = ctypes.c_int.from_address(message).value
            if code == KafkaError._PARTITION_EOF:
                end = ctypes.c_int64.from_address(message + drain.OFFSET).value
                continue
            payload = _Pointer.from_address(message + drain.PAYLOAD).value
            length = ctypes.c_size_t.from_address(message + drain.PAYLOAD + 8).value
            text = ctypes.string_at(payload, length).decode(errors="replace") if payload else self._text(code)
            errors.append(KafkaError(code, text))
        return tuple(errors), end

    def _take_error(self, client: int, code: int, reason: bytes | None, _: int | None) -> None:
        text, fatal = reason or b"", code == KafkaError._FATAL
        if fatal:
            buffer = ctypes.create_string_buffer(_ERROR_TEXT)
            code = self._library.rd_kafka_fatal_error(client, buffer, len(buffer))
            text = buffer.value
        self._on_error(KafkaError(code, text.decode(errors="replace"), fatal=fatal))

    def _take_log(self, client: int, level: int, facility: bytes, line: bytes) -> None:
        self._logger.log(
            _LEVELS[min(level, 7)], "%s %s", facility.decode(errors="replace"), line.decode(errors="replace")
        )

    def _text(self, code: int) -> str:
        text: bytes = self._library.rd_kafka_err2str(code)
        return text.decode(errors="replace")

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), _Pointer).value or 0


def _empty_spans(records: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    return np.empty(size + PADDING, np.uint8), np.empty(records, np.int64), np.empty(records, np.int64)


def warm_up() -> None:
    """Compile the kernels, or load them from the disk cache."""
    none, kinds, words = np.zeros(1, np.int64), np.zeros(1, np.uint8), np.zeros(4, np.int64)
    buffer = np.zeros(8, np.uint8)
    drain.survey(none, 0, 0, 0, 0, kinds, words)
    drain.copy_facts(none, 0, kinds, 0, 0, words, words)
    drain.copy_spans(none, 0, kinds, drain.KEY, buffer, words, words)
    drain.headers_room(none, 0, kinds, words)
    drain.copy_headers(none, 0, kinds, words, buffer, buffer, words, words)
    drain.destroy(none, 0, 0)
