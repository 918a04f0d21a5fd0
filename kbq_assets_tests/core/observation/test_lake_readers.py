"""Tables of a lake whose current state BigQuery does not read."""

from __future__ import annotations

import pytest

from kbq_assets.core.observation.lake_readers import LakeReaders
from kbq_assets.core.protocol.names import TableReference


@pytest.mark.parametrize(
    ("tried", "why", "behind"),
    [
        ([], {}, {"d.a": "old", "d.b": "old"}),
        (["d.a"], {}, {"d.b": "old"}),
        (["d.a"], {"d.a": "new"}, {"d.a": "new", "d.b": "old"}),
        (["d.c"], {"d.c": "new"}, {"d.a": "old", "d.b": "old", "d.c": "new"}),
        (["d.a", "d.b"], {}, {}),
    ],
    ids=["nothing tried", "moved", "still behind", "another one", "all moved"],
)
def test_tables_that_nobody_tried_stay_behind(
    tried: list[str], why: dict[str, str], behind: dict[str, str]
) -> None:
    reasons = {TableReference.parse(table): reason for table, reason in why.items()}
    after = LakeReaders({"d.b": "old", "d.a": "old"}).after(tried, reasons)
    assert list(after.behind.items()) == list(behind.items())
