"""Points in time, as operators write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.timestamps import parse_moment

DAY = 1_769_817_600_000  # 2026-01-31


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", 0),
        ("1769817600000", DAY),
        ("2026-01-31", DAY),
        ("20260131", DAY),
        ("2026-01-31T00:00", DAY),
        ("2026-01-31T00:00:00Z", DAY),
        ("2026-01-31T01:00:00+01:00", DAY),
        ("2026-01-30T23:30:00-00:30", DAY),
        ("2026-01-31 00:00:00.001", DAY + 1),
        ("2026-01-31T00:00:00.0015", DAY + 2),
        ("1969-12-31T23:59:59Z", -1000),
        ("0001-01-01", -62_135_596_800_000),
        ("9" * 18, 10**18 - 1),
    ],
)
def test_a_moment_is_iso_8601_in_utc_or_milliseconds(text: str, moment: int) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "-1", "1.5", "٣", "2026-13-01", "2026-02-30", "20261301", "12:00", " 5", "9" * 5000],
)
def test_what_is_no_moment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="neither ISO 8601 nor milliseconds") as caught:
        parse_moment(text)
    assert parse_moment(caught.value.next_step) == DAY


@settings(max_examples=25)
@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_any_moment_survives_to_the_millisecond(moment: datetime) -> None:
    whole = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    found = parse_moment(whole.isoformat())
    assert datetime.fromtimestamp(found / 1000, UTC) == whole
    assert found < 0 or len(str(found)) == 8 or parse_moment(str(found)) == found
