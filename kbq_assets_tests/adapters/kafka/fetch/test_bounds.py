"""A hostile broker's answer costs time and memory in proportion to its bytes, whose number is limited."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kbq_assets.adapters.kafka.fetch import wire_protocol
from kbq_assets.adapters.kafka.fetch.errors import FetchFailure
from kbq_assets.adapters.kafka.fetch.record_batches import survey
from kbq_assets.adapters.kafka.fetch.wire_protocol import ResponseReader
from kbq_assets.core.protocol.offsets import TopicPartition

TP = TopicPartition("t", 0)
PARSERS: dict[str, Callable[[ResponseReader], Any]] = {
    "versions": wire_protocol.parse_api_versions,
    "metadata": lambda reply: wire_protocol.parse_metadata(reply, "t"),
    "epoch_end": lambda reply: wire_protocol.parse_epoch_end(reply, TP),
    "fetch": lambda reply: wire_protocol.parse_fetch(reply, TP),
    "handshake": wire_protocol.parse_handshake,
    "authenticate": wire_protocol.parse_authenticate,
}


class Counting(ResponseReader):
    """Counts its steps."""

    def __init__(self, data: bytes) -> None:
        super().__init__(memoryview(data))
        self.steps = 0

    def skip(self, size: int) -> int:
        self.steps += 1
        return super().skip(size)


def steps(parse: Callable[[ResponseReader], Any], data: bytes) -> int:
    reply = Counting(data)
    with contextlib.suppress(FetchFailure):
        parse(reply)
    return reply.steps


def hostile(chance: random.Random, size: int) -> bytes:
    """Lengths that fit, lengths that do not, and empty items, in any order."""
    parts = []
    for _ in range(size // 4):
        kind = chance.randrange(6)
        number = (0, 1, 2, -1, chance.getrandbits(31), size // chance.randint(2, 40))[kind]
        parts.append(struct.pack(">i", number))
    return b"".join(parts)


@pytest.mark.parametrize("name", PARSERS)
def test_no_answer_takes_more_steps_than_it_has_bytes(name: str) -> None:
    for seed in range(300):
        data = hostile(random.Random(f"{name} {seed}"), 400)
        assert steps(PARSERS[name], data) <= len(data) + 2, f"seed {seed}"


def dense(name: str, count: int) -> bytes:
    """An answer of as many items as fit into its bytes."""
    many = struct.pack(">i", count)
    return {
        "versions": b"\0\0" + many + bytes(6 * count),
        "metadata": bytes(4)
        + many
        + bytes(12 * count)
        + bytes(6)
        + struct.pack(">ihh", 1, 0, 1)
        + b"t\0"
        + bytes(4),
        "handshake": b"\0\0" + many + bytes(2 * count),
        "fetch": bytes(10)
        + struct.pack(">ih", 1, 1)
        + b"t"
        + struct.pack(">iihqqq", 1, 0, 0, 9, 9, 0)
        + many
        + bytes(16 * count + 4),
    }[name]


@pytest.mark.parametrize("name", ["versions", "metadata", "handshake", "fetch"])
def test_four_times_the_bytes_take_four_times_the_steps_and_the_memory(name: str) -> None:
    small, large = (steps(PARSERS[name], dense(name, count)) for count in (200, 800))
    assert large <= 4 * small + 20
    peaks = []
    for count in (200, 800):
        data = dense(name, count)
        tracemalloc.start()
        try:
            PARSERS[name](ResponseReader(memoryview(data)))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] <= 5 * peaks[0] + 20_000


@pytest.mark.parametrize(
    ("name", "most"),
    [("metadata", wire_protocol.MOST_NODES), ("fetch", wire_protocol.MOST_ABORTED), ("handshake", 1000)],
)
def test_so_many_items_are_damage_whatever_fits_into_an_answer(name: str, most: int) -> None:
    with pytest.raises(FetchFailure, match=f"{most + 1}"):
        PARSERS[name](ResponseReader(memoryview(dense(name, most + 1))))


def test_metadata_is_about_the_topic_that_was_asked_for() -> None:
    topics = struct.pack(">i", 2) + 2 * (struct.pack(">hh", 0, 1) + b"t\0" + bytes(4))
    with pytest.raises(FetchFailure, match="2 items instead of 1"):
        PARSERS["metadata"](ResponseReader(memoryview(bytes(14) + topics)))


def test_batches_of_any_bytes_are_surveyed_in_as_many_steps() -> None:
    """Each step ends the survey, or advances by at least a batch header."""
    head = struct.pack(">qiibIhiqqqhii", 0, 49, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 0)
    chance = random.Random(1)
    for _ in range(300):
        data = bytearray(b"".join(struct.pack(">q", n) + head[8:] for n in range(20)))
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            found = survey(np.frombuffer(bytes(data), np.uint8), 0, len(data))
        except FetchFailure:
            continue
        assert len(found) <= len(data) // len(head)
