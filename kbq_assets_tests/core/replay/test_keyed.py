"""Which upsert tables a range of can be replaced, and when all of its keys are known (PROTOCOL R11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.table_state import JobInFlight, TableState, mark_key
from kbq_assets.core.ordering.table_order import OrderRule, TableOrder
from kbq_assets.core.plurals import counted
from kbq_assets.core.replay.model import Bounds, Replay, check_latest
from kbq_assets.core.replay.promotion import (
    check_positions,
    check_replaceable,
    check_settled,
    is_fed,
    is_whole,
)
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.table_statements import TableStatements
from kbq_assets_tests.core.replay.test_promotion import REPLAY, TABLE, staged

UPSERT = StatementRule("upsert", ("id",))


def kept(rule: StatementRule = UPSERT, **changes: Any) -> TableState:
    """The state of a table that a statement keeps."""
    state = TableState("u", rows={"t/0/2": 1})
    statements = TableStatements(rule, applied=1, appended=False)
    definition = replace(state.definition, statements=replace(statements, **changes))
    return replace(state, definition=definition)


def test_an_upsert_table_is_replaceable_and_an_appended_one_is() -> None:
    assert check_replaceable(TABLE, kept(), [UPSERT]) == UPSERT
    assert check_replaceable(TABLE, TableState("u"), []).appends


def _ordered(rule: OrderRule, state: TableState) -> TableState:
    return replace(state, order=TableOrder(rule))


FAILED = JobInFlight("j", "p", "l", ())


@pytest.mark.parametrize(
    ("state", "rule", "why"),
    [
        (kept(), replace(UPSERT, tie="timestamp"), "the first one under its topics' new `load`"),
        (kept(), StatementRule(), "the first one under its topics' new `load`"),
        (TableState("u"), UPSERT, "the first one under its topics' new `load`"),
        (kept(replace(UPSERT, tie="timestamp")), replace(UPSERT, tie="timestamp"), "tie=timestamp"),
        (kept(replace(UPSERT, kind="scd2")), replace(UPSERT, kind="scd2"), "load=scd2"),
        (kept(appended=True), StatementRule(), "appended since"),
        (_ordered(OrderRule("offset", ("person",)), TableState("u")), StatementRule(), "gates"),
        (_ordered(OrderRule("hour"), TableState("u")), StatementRule(), "complete hours"),
        (_ordered(OrderRule("offset", ("person",)), kept()), UPSERT, "order=offset"),
        (_ordered(OrderRule("hour"), kept()), UPSERT, "order=hour"),
        (replace(kept(), definition=replace(kept().definition, failed=FAILED)), UPSERT, "failed"),
    ],
)
def test_another_table_is_refused_by_name(state: TableState, rule: StatementRule, why: str) -> None:
    with pytest.raises(Refused, match=why):
        check_replaceable(TABLE, state, [rule])


def test_an_upsert_table_in_offset_order_is_replaceable() -> None:
    assert check_replaceable(TABLE, _ordered(OrderRule("offset"), kept()), [UPSERT]) == UPSERT


@pytest.mark.parametrize(("former", "new", "common"), [(3, 3, 3), (0, 0, 0), (3, 2, 2), (2, 3, 2), (2, 2, 1)])
def test_a_table_in_offset_order_keeps_its_offsets(former: int, new: int, common: int) -> None:
    if former == new == common:
        check_positions(TABLE, former, new, common)
        return
    with pytest.raises(Refused, match=f"{counted(new - common, 'row')} of the range would appear"):
        check_positions(TABLE, former, new, common)


def test_files_before_the_ranges_end_are_loaded_into_an_upsert_table_first() -> None:
    for file in (staged(0, 5), staged(12, 13), staged(50, 60, epoch=1)):
        with pytest.raises(Refused, match="or before it"):
            check_settled(REPLAY, TABLE, kept(), [file])
        check_settled(REPLAY, TABLE, replace(kept(), marks={mark_key(file): file.until}), [file])
    for file in (staged(20, 30), staged(0, 5, partition=1), staged(0, 5, topic="u"), staged(0, 5, epoch=3)):
        check_settled(REPLAY, TABLE, kept(), [file])


def test_all_is_known_of_a_range_that_begins_where_the_table_does() -> None:
    assert is_whole(REPLAY, kept(), {0: 10, 1: 0})
    assert not is_whole(REPLAY, kept(), {0: 9, 1: 0})
    assert not is_whole(REPLAY, replace(kept(), rows={"t/0/1": 3}), {0: 10, 1: 0})
    assert is_whole(REPLAY, replace(kept(), rows={"other/0/1": 3, "t/0/3": 1}), {0: 10, 1: 0})


def test_a_table_is_concerned_once_it_had_records_of_the_epoch() -> None:
    assert is_fed(REPLAY, kept())
    assert not is_fed(REPLAY, replace(kept(), rows={"t/0/1": 1, "u/0/2": 1}))


def test_a_rollback_waits_for_later_promotions_of_other_ranges_with_its_keys() -> None:
    """Such a promotion keeps a copy of this one's rows, and would bring them back."""
    replay = replace(REPLAY, turn=3, tables=("d.A", "d.B"))
    other = Replay(8, "t", 2, {0: Bounds(20, 30)}, phase="promoted", turn=4, tables=("d.A",))
    with pytest.raises(Refused, match="later, over rows of its range or keys"):
        check_latest(replay, [other], frozenset({TABLE}))
    for free in (replace(other, tables=("d.C",)), replace(other, turn=2)):
        check_latest(replay, [free], frozenset({TABLE}))
    check_latest(replay, [other])
