"""A single commit deletes old rows, whatever else happens to the table."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import UnknownOutcome
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.compaction.expiry import ExpiryReport, expire_table
from kbq_assets_tests.contracts.warehouse import TABLE
from kbq_assets_tests.fakes.compaction import FakeLake

NOW = 100 * 86_400_000


@pytest.fixture
def lake() -> FakeLake:
    """Jobs of the days 97 to 100."""
    lake = FakeLake()
    for day in range(97, 101):
        lake.load(day)
        lake.days[f"job-{len(lake.jobs)}"] = day
    return lake


def expire(lake: FakeLake, days: int = 1) -> ExpiryReport:
    return expire_table(lake, TABLE, days, NOW)


def test_old_days_go_and_their_files_with_the_snapshots(lake: FakeLake) -> None:
    report = expire(lake)
    assert (report.rows, report.files, report.message) == (2, 2, "")
    assert lake.offsets() == [99, 100]
    assert len(lake.stored) == 2
    assert expire(lake).rows == 0


def test_a_table_that_keeps_all_days_is_only_tidied(lake: FakeLake) -> None:
    assert (expire(lake, 0).rows, lake.offsets()) == (0, [97, 98, 99, 100])
    assert len(lake.snapshots) == 1


def test_a_load_meanwhile_is_kept(lake: FakeLake) -> None:
    def load(call: str) -> None:
        lake.interrupt = lambda name: None
        lake.load(7)

    lake.interrupt = lambda call: load(call) if call == "before commit" else None
    assert expire(lake).rows == 2
    assert lake.offsets() == [7, 99, 100]


def test_a_table_that_never_rests_is_left_for_the_next_run(lake: FakeLake) -> None:
    lake.interrupt = lambda call: lake.load(7) if call == "before commit" else None
    report = expire(lake)
    assert report.transient
    assert "changed 20 times" in report.message


def test_errors_are_in_the_report(lake: FakeLake) -> None:
    def unknown(call: str) -> None:
        raise UnknownOutcome("no answer")

    lake.interrupt = unknown
    assert expire(lake).transient
    missing = expire_table(FakeLake(), TableReference("shop", "missing"), 1, NOW)
    assert "does not exist" in missing.message
    assert not missing.transient
