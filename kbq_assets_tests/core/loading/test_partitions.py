"""A table partitioned by hour uses KBQ's own time, and quotas count its partitions."""

from __future__ import annotations

import pytest

from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.partitions import limits_by, time_column

OWN = ["_kafka_topic", "_kafka_timestamp"]


@pytest.mark.parametrize(
    ("names", "column"),
    [
        (["id", *OWN, "_event_time"], "_event_time"),
        (["id", *OWN], "_kafka_timestamp"),
        (["_EVENT_TIME", *OWN], "_kafka_timestamp"),
        (["id", "event_date"], ""),
    ],
)
def test_business_time_gives_the_hour_else_kafkas_and_never_a_records_own_field(
    names: list[str], column: str
) -> None:
    assert time_column(names) == column


def test_a_day_of_a_table_by_hours_counts_as_24_partitions() -> None:
    assert limits_by(LoadLimits(), {"", "hour"}) == LoadLimits(
        time_partitions=166, changes_per_day=1_250, partitions=416
    )


@pytest.mark.parametrize("unit", ["", "day", "month"])
def test_other_units_never_count_more_than_days(unit: str) -> None:
    assert limits_by(LoadLimits(), {unit}) == LoadLimits()


def test_a_warehouse_without_quotas_keeps_the_size_of_its_jobs() -> None:
    free = LoadLimits(time_partitions=400, jobs_per_day=0)
    assert limits_by(free, {"hour"}) == free
