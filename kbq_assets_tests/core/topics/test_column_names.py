"""Names in snake_case: readable, and never two fields in one column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.topics.column_names import snake_case, snake_case_names, snake_case_path


@pytest.mark.parametrize(
    "written, name",
    [
        ("orderId", "order_id"),
        ("OrderID", "order_id"),
        ("URLPath", "url_path"),
        ("line2Total", "line2_total"),
        ("Screen_Size", "screen_size"),
        ("order_id", "order_id"),
        ("ID", "id"),
        ("_kafka_offset", "_kafka_offset"),
        ("__source", "__source"),
        ("amountEUR__string", "amount_eur__string"),
    ],
)
def test_words_are_separated_and_underscores_stay(written: str, name: str) -> None:
    assert snake_case(written) == name


def test_fields_of_one_record_that_would_share_a_column_keep_their_names() -> None:
    paths = [("orderId",), ("order_id",), ("OrderDate",), ("orderDate",), ("shipTo",), ("shipTo", "zipCode")]
    assert snake_case_names(paths) == {("shipTo",): "ship_to", ("shipTo", "zipCode"): "zip_code"}


def test_the_path_of_a_nested_column_has_the_new_names_of_all_its_parts() -> None:
    names = snake_case_names([("shipTo",), ("shipTo", "zipCode"), ("shipTo", "city")])
    assert snake_case_path(("shipTo", "zipCode"), names) == ("ship_to", "zip_code")
    assert snake_case_path(("shipTo", "city"), names) == ("ship_to", "city")


@given(st.sets(st.text("abAB_1", min_size=1, max_size=4)))
def test_no_two_fields_ever_get_one_column(written: set[str]) -> None:
    """Names that differ only in case are refused, renamed or not, because warehouses ignore case."""
    distinct = {name.lower(): name for name in sorted(written)}.values()
    names = snake_case_names((name,) for name in distinct)
    columns = [snake_case_path((name,), names)[0].lower() for name in distinct]
    assert len(set(columns)) == len(columns)
