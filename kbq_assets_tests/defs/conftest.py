"""Fixtures that Dagster's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from kbq_assets_tests.defs.world import PlatformWorld


@pytest.fixture(scope="session", autouse=True)
def revisions() -> Iterator[None]:
    """Alembic loads Dagster's 89 revisions once a run, not twice for each instance: a sixth of these tests' time."""
    known: dict[str, ScriptDirectory] = {}
    load = ScriptDirectory.from_config

    def from_config(config: Config) -> ScriptDirectory:
        location = config.get_main_option("script_location") or ""
        if location not in known:
            known[location] = load(config)
        return known[location]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", from_config)
        yield


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
