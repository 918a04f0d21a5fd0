"""One warm parent and one set of homes for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbq_assets.local.stack import LocalStack
from kbq_assets_tests.adapters.kafka.brokers import real_broker
from kbq_assets_tests.crashes import forks as forking
from kbq_assets_tests.crashes.forks import Forks
from kbq_assets_tests.crashes.scenes import Scenes
from kbq_assets_tests.integration.world import Producers


@pytest.fixture(scope="package")
def producers(local_stack: LocalStack) -> Iterator[Producers]:
    for broker in real_broker(local_stack.bootstrap_servers):
        yield Producers(broker, local_stack.registry_url)


@pytest.fixture(scope="package")
def forks() -> Iterator[Forks]:
    with forking.forks() as parent:
        yield parent


@pytest.fixture(scope="package")
def scenes(producers: Producers, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return Scenes(tmp_path_factory.mktemp("homes"), producers, forks)
