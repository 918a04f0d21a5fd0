"""The contract suite against the fake and the real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbq_assets.local.stack import LocalStack
from kbq_assets_tests.adapters.kafka.brokers import FakeBroker, RealBroker, real_broker
from kbq_assets_tests.contracts.source import BrokerContract

pytest_plugins = ["kbq_assets_tests.fixtures.local_stack"]


class TestFakeKafka(BrokerContract):
    @pytest.fixture
    def broker(self) -> FakeBroker:
        return FakeBroker()


@pytest.fixture(autouse=True)
def _soon_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbq_assets.adapters.kafka.librdkafka.END_SECONDS", 2.0)


@pytest.mark.kafka
class TestKafka(BrokerContract):
    @pytest.fixture
    def broker(self, local_stack: LocalStack) -> Iterator[RealBroker]:
        yield from real_broker(local_stack.bootstrap_servers)
