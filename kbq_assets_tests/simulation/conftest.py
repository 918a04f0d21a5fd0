"""Worlds of one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbq_assets_tests.simulation.world import in_one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with in_one_thread():
        yield
