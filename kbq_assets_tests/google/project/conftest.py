"""Without RUN_INTEGRATION_TESTS=true nothing here runs: deselected, which hides nothing, and not skipped. The two
identities need KBQ_TEST_GCP_STAGING too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbq_assets_tests.google.project.place import Place

_HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.parent == _HERE]
    if os.environ.get("RUN_INTEGRATION_TESTS") == "true":
        needs = [item for item in ours if item.path.name == "test_identities.py"]
        ours = [] if os.environ.get("KBQ_TEST_GCP_STAGING") else needs
    items[:] = [item for item in items if item not in ours]
    config.hook.pytest_deselected(items=ours)


@pytest.fixture(scope="session")
def gcp() -> Iterator[Place]:
    """The project of the environment. What the run has made there goes with it."""
    found = Place.of_environ(os.environ)
    found.sweep()
    yield found
    found.clear()


@pytest.fixture
def corner(gcp: Place) -> str:
    """A name of the test's own, for datasets and folders."""
    return gcp.new_name()
