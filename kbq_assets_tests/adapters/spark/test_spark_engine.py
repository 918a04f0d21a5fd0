"""The engine on a real Spark keeps the contract of engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbq_assets.adapters.spark.engine import SparkEngine
from kbq_assets.adapters.spark.session import spark_context
from kbq_assets.core.config.parts import SparkSettings
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets_tests.contracts import engine as contract

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_context(SparkSettings(f"local[{contract.SLOTS}]"), tmp_path_factory.mktemp("spark")) as opened:
        yield opened


class TestSparkEngine(contract.EngineContract):
    @pytest.fixture
    def engine(self, context: Any) -> ExtractionEngine:
        return SparkEngine(context, contract.task)
