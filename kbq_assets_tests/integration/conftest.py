"""A separate world on the shared broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbq_assets.local.stack import LocalStack
from kbq_assets_tests.adapters.kafka.brokers import real_broker
from kbq_assets_tests.integration.world import Producers, World


@pytest.fixture
def producers(local_stack: LocalStack) -> Iterator[Producers]:
    for broker in real_broker(local_stack.bootstrap_servers):
        yield Producers(broker, local_stack.registry_url)


@pytest.fixture
def world(producers: Producers, tmp_path: Path) -> World:
    return World(tmp_path / "home", producers)
