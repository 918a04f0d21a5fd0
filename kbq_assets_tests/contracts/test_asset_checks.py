"""The assumptions of gates about the orchestrator's checks hold for the fake and for Dagster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import dagster as dg
import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.defs.loading.step import DagsterChecks
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.ports.asset_checks import AssetChecks
from kbq_assets_tests.fakes.asset_checks import FakeAssetChecks

T, OTHER = TableReference("d", "t"), TableReference("d", "other")
Evaluate = Callable[[TableReference, str, bool], None]


@pytest.fixture(params=["fake", "dagster"])
def checks(request: pytest.FixtureRequest) -> Iterator[tuple[AssetChecks, Evaluate]]:
    if request.param == "fake":
        fake = FakeAssetChecks()
        yield fake, lambda table, check, passed: fake.evaluate(table, check, passed=passed)
        return
    translator = AssetTranslator()

    def evaluate(table: TableReference, check: str, passed: bool) -> None:
        key = translator.dataset_key(table)
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(key, check, passed, {}, description="3 rows are bad")
        )

    with dg.DagsterInstance.ephemeral() as instance:
        yield DagsterChecks(instance, translator), evaluate


def test_the_last_evaluation_of_a_check_of_a_table_is_found(checks: tuple[AssetChecks, Evaluate]) -> None:
    found, evaluate = checks
    assert found.latest(T, "whole") is None
    evaluate(T, "whole", False)
    evaluate(OTHER, "whole", True)
    evaluate(T, "new", True)
    red = found.latest(T, "whole")
    assert red is not None
    assert (red.passed, red.message) == (False, "3 rows are bad")
    evaluate(T, "whole", True)
    green = found.latest(T, "whole")
    assert green is not None
    assert green.passed
    assert green.number > red.number


class SilentInstance:
    """An instance whose database is away."""

    def get_latest_asset_check_evaluation_record(self, key: dg.AssetCheckKey) -> None:
        raise OSError(f"no database for {key.name}")


def test_a_history_that_does_not_answer_is_unavailable() -> None:
    away = DagsterChecks(cast("dg.DagsterInstance", SilentInstance()), AssetTranslator())
    with pytest.raises(
        Unavailable, match=r"the check whole of d\.t cannot be read from Dagster: no database"
    ):
        away.latest(T, "whole")
