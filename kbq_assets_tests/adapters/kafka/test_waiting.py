"""How long each reader waits for a range that does not progress."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from kbq_assets.adapters.kafka import librdkafka
from kbq_assets.adapters.kafka.fetch import source as fetch
from kbq_assets.adapters.kafka.fetch.source import FetchSource
from kbq_assets.adapters.kafka.librdkafka import LibrdkafkaSource
from kbq_assets.adapters.kafka.reader import open_reader
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.ports.kafka import ReadOptions, RecordSource
from kbq_assets_tests.adapters.kafka.fetch.wire_broker import TOPIC, wire_broker
from kbq_assets_tests.adapters.kafka.fetch.wires import batch
from kbq_assets_tests.contracts.source import messages, records

NOBODY = "127.0.0.1:1"
TP = TopicPartition(TOPIC, 0)
#: Long next to what is waited for, and next to a slow machine.
FOREVER = 600.0

READERS: dict[str, Callable[[], RecordSource]] = {
    "fetch": lambda: FetchSource(NOBODY, no_progress_seconds=FOREVER),
    "librdkafka": lambda: LibrdkafkaSource(NOBODY, no_progress_seconds=FOREVER),
    "auto": lambda: open_reader(NOBODY),
}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (librdkafka, fetch):
        monkeypatch.setattr(module, "LEAST_WAIT_SECONDS", 1.0)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_a_stalled_range_is_waited_for_as_long_as_the_caller_has(name: str, seconds: float) -> None:
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="nothing came"):
        list(READERS[name]().read(OffsetRange(TP, 0, 1), ReadOptions(wait_seconds=seconds)))
    assert max(1.0, seconds) <= time.monotonic() - begun < 30


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_says_nothing_leaves_the_others_time_to_answer(silent_server: str) -> None:
    log = [(5, batch(messages(5)))]
    with wire_broker(log=log) as broker:
        source = FetchSource(f"{silent_server},{broker.address}", no_progress_seconds=FOREVER)
        begun = time.monotonic()
        found = list(source.read(OffsetRange(TP, 0, 5), ReadOptions(wait_seconds=6)))
        assert (list(records(found)), time.monotonic() - begun < 30) == ([0, 1, 2, 3, 4], True)
