"""A job id ends once, even if its series has dropped the record, and a series does not grow."""

from __future__ import annotations

import json

import pytest

from kbq_assets.adapters.iceberg.job_records import (
    PREFIX,
    REMEMBERED,
    JobRecord,
    find,
    recorded,
    series_of,
    source_lists,
)
from kbq_assets.ports.warehouse import JobError


@pytest.mark.parametrize(
    ("job_id", "series"),
    [
        ("kbq-1a2b-7", ("kbq-1a2b", 7)),
        ("kbq-9f2c-4e-120", ("kbq-9f2c-4e", 120)),
        ("j1", ("j1", 0)),
        ("7", ("7", 0)),
    ],
)
def test_the_number_at_the_end_orders_a_series(job_id: str, series: tuple[str, int]) -> None:
    assert series_of(job_id) == series


def properties_after(*numbers: int, series: str = "kbq-a") -> dict[str, str]:
    properties: dict[str, str] = {}
    for number in numbers:
        job = JobRecord(f"{series}-{number}", f"c{number}", f"s{number}", number)
        properties |= recorded(properties, job)[0]
    return properties


def test_a_number_above_the_last_may_run_and_none_at_or_below_it() -> None:
    properties = properties_after(3, 7)
    assert find(properties, "kbq-a-8") is None
    assert find(properties, "kbq-a-7") == JobRecord("kbq-a-7", "c7", "s7", 7)
    assert find(properties, "kbq-a-3") == JobRecord("kbq-a-3", "c3", "s3", 3)
    skipped = find(properties, "kbq-a-5")
    assert skipped == JobRecord("kbq-a-5", "")  # as a burned id
    assert find(properties, "kbq-b-1") is None


def test_a_series_remembers_few_jobs_and_forgets_none_of_its_ids() -> None:
    properties = properties_after(*range(1, 500))
    assert len(properties) == 1
    assert len(json.loads(properties[PREFIX + "kbq-a"])["jobs"]) == REMEMBERED
    assert len(properties[PREFIX + "kbq-a"]) < 600
    assert all(find(properties, f"kbq-a-{number}") is not None for number in range(1, 500))
    _, forgotten = recorded(properties, JobRecord("kbq-a-500", "c"))
    assert [job.job_id for job in forgotten] == ["kbq-a-496"]
    assert recorded({}, JobRecord("kbq-a-1", "c"))[1] == ()


def test_an_error_is_kept_and_cut() -> None:
    record = JobRecord("j-1", "c", reason="invalid", message="x" * 10_000)
    properties, _ = recorded({}, record)
    found = find(properties, "j-1")
    assert found is not None
    assert found.error == JobError("invalid", "x" * 500, transient=False)
    assert JobRecord("j-2", "c").error is None


def test_a_record_of_a_newer_release_is_read() -> None:
    properties = {
        PREFIX + "j": json.dumps({"last": 2, "jobs": [{"job_id": "j-2", "marks": {"t": 1}}], "more": 1})
    }
    assert find(properties, "j-2") == JobRecord("j-2", "")


def test_the_lists_of_sources_of_all_series_are_known() -> None:
    properties = properties_after(4) | properties_after(8, 9, series="kbq-b") | {"comment": "text"}
    assert source_lists(properties) == {"s4", "s8", "s9"}
