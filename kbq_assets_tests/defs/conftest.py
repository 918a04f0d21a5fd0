"""What Dagster's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from kbq_assets_tests.defs.world import PlatformWorld


@pytest.fixture
def world(tmp_path: Path) -> PlatformWorld:
    """A platform over the fakes."""
    return PlatformWorld(tmp_path)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster instance in memory."""
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Dagster calls some of its arguments beta, its own ones included."""
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings("ignore::dagster.BetaWarning"))
