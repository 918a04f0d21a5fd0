"""The fake keeps the contract."""

from __future__ import annotations

import pytest

from kbq_assets_tests.contracts.readers import NOWHERE, ReadersContract
from kbq_assets_tests.fakes.readers import FakeReaders


class TestFakeReaders(ReadersContract):
    @pytest.fixture
    def readers(self) -> FakeReaders:
        return FakeReaders(NOWHERE)
