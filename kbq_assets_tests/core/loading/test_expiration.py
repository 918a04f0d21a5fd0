"""A table that would drop rows is refused, with the commands that keep the rows or accept their loss."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.expiration import drops_rows, require_rows_kept
from kbq_assets.core.loading.table_notes import StoredTable
from kbq_assets.core.protocol.names import TableReference

DAY_MS = 86_400_000
TABLE = TableReference("shop", "orders")


@pytest.mark.parametrize(
    ("stored", "days", "drops"),
    [
        (StoredTable(()), 0, False),
        (StoredTable(()), 30, False),
        (StoredTable((), partition_expiry_ms=30 * DAY_MS), 0, True),
        (StoredTable((), partition_expiry_ms=30 * DAY_MS), 30, False),
        (StoredTable((), partition_expiry_ms=30 * DAY_MS), 31, True),
        (StoredTable((), partition_expiry_ms=90 * DAY_MS), 30, False),
        (StoredTable((), expires=True), 30, True),
    ],
)
def test_a_table_drops_rows_that_its_options_keep(stored: StoredTable, days: int, drops: bool) -> None:
    assert bool(drops_rows(stored, days)) is drops


def test_the_refusal_names_both_ways_on() -> None:
    stored = StoredTable((), partition_expiry_ms=60 * DAY_MS)
    with pytest.raises(ConfigurationError, match="expire after 60 days") as refusal:
        require_rows_kept(TABLE, stored, 0)
    assert "ALTER TABLE `shop.orders` SET OPTIONS (partition_expiration_days=NULL)" in str(refusal.value)
    assert "partition_expiry_days=60" in refusal.value.next_step
    require_rows_kept(TABLE, stored, 60)
    require_rows_kept(TABLE, None, 0)


def test_a_table_that_expires_as_a_whole_names_its_own_command() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        require_rows_kept(TABLE, StoredTable((), expires=True), 60)
    assert "expiration_timestamp=NULL" in refusal.value.next_step
