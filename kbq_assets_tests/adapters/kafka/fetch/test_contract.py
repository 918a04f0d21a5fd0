"""The contract suite, against the reader with its own implementation of Kafka's protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbq_assets.adapters.kafka.fetch.source import FetchSource
from kbq_assets.local.stack import LocalStack
from kbq_assets_tests.adapters.kafka.brokers import RealBroker, real_broker
from kbq_assets_tests.contracts.source import BrokerContract

pytest_plugins = ["kbq_assets_tests.fixtures.local_stack"]


@pytest.fixture(autouse=True)
def _soon_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbq_assets.adapters.kafka.fetch.source.END_SECONDS", 2.0)


@pytest.mark.kafka
class TestKafkaByFetch(BrokerContract):
    @pytest.fixture
    def broker(self, local_stack: LocalStack) -> Iterator[RealBroker]:
        for broker in real_broker(local_stack.bootstrap_servers):
            broker.source = FetchSource(local_stack.bootstrap_servers, chunk_records=1_000)
            yield broker
