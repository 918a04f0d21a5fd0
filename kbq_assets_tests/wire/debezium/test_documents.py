"""Change events in JSON without a schema: their rows, and why some have none."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kbq_assets.core.debezium.change_columns import PLACEHOLDER
from kbq_assets.wire.debezium.documents import document_row
from kbq_assets.wire.debezium.envelope import NoRow
from kbq_assets.wire.records.reasons import Reason

SOURCE = {"connector": "postgresql", "table": "t"}
ROW = {"id": 1, "name": "a"}


def event(op: Any, **parts: Any) -> dict[str, Any]:
    return {"op": op, "source": SOURCE, **parts}


def row(document: Any, *, has_order: bool = False) -> Any:
    return document_row(document, has_order=has_order)


@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_the_row_is_that_after_the_change(op: str) -> None:
    found = row(event(op, before={"id": 0}, after=ROW))
    assert found == {**ROW, "__op": op, "__deleted": False, "__source": SOURCE}


def test_a_deletion_has_the_row_before_it() -> None:
    found = row(event("d", before=ROW, after=None))
    assert found == {**ROW, "__op": "d", "__deleted": True, "__source": SOURCE}


@pytest.mark.parametrize("parts", [{}, {"before": None}, {"before": None, "after": ROW}])
def test_a_deletion_without_a_row_has_the_columns_of_the_change_alone(parts: Any) -> None:
    assert row(event("d", **parts)) == {"__op": "d", "__deleted": True, "__source": SOURCE}


def test_a_truncation_has_no_row_and_needs_an_order() -> None:
    found = row(event("t", before=ROW, after=ROW), has_order=True)
    assert found == {"__op": "t", "__deleted": False, "__source": SOURCE}
    with pytest.raises(NoRow) as caught:
        row(event("t"))
    assert caught.value.reason == Reason.TABLE_TRUNCATED


@pytest.mark.parametrize(
    ("document", "reason", "message"),
    [
        pytest.param(event("m"), Reason.NO_CHANGE, "", id="message"),
        pytest.param(event("x"), Reason.INVALID_CHANGE, "op='x'", id="unknown change"),
        pytest.param(event("y" * 99), Reason.INVALID_CHANGE, f"op='{'y' * 20}'", id="long change"),
        pytest.param(event("c"), Reason.INVALID_CHANGE, "op=c, without a row in after", id="no row"),
        pytest.param(event("u", after=None), Reason.INVALID_CHANGE, "without a row in after", id="null row"),
        pytest.param(event("r", after=[1]), Reason.INVALID_CHANGE, "without a row in after", id="list"),
        pytest.param(
            event("c", after={"id": 1, "__Op": 2}),
            Reason.INVALID_CHANGE,
            "collides with the change's own",
            id="column",
        ),
        pytest.param(event("d", before="x"), Reason.INVALID_CHANGE, "without a row in before", id="text"),
    ],
)
def test_an_event_without_a_row_says_why(document: Any, reason: Reason, message: str) -> None:
    with pytest.raises(NoRow) as caught:
        row(document)
    assert caught.value.reason == reason
    assert caught.value.message.endswith(message)


@pytest.mark.parametrize(
    "document",
    [
        None,
        5,
        "text",
        [event("c", after=ROW)],
        {},
        {"op": "c", "after": ROW},
        {"op": 1, "source": SOURCE},
        {"op": "c", "source": None, "after": ROW},
        {"op": "c", "source": {"table": "t"}, "after": ROW},
    ],
)
def test_a_document_that_is_no_event_stays_as_it_is(document: Any) -> None:
    assert row(document) is document


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(PLACEHOLDER, id="text"),
        pytest.param([PLACEHOLDER], id="list"),
        pytest.param({PLACEHOLDER: PLACEHOLDER}, id="map"),
        pytest.param(list(PLACEHOLDER.encode()), id="bytes"),
        pytest.param(list(map(float, PLACEHOLDER.encode())), id="fractions"),
        pytest.param(f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}', id="hstore"),
        pytest.param("X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", id="base64"),
        pytest.param(["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="], id="list of base64"),
        pytest.param(
            [base64.b64encode(bytes([each])).decode() for each in PLACEHOLDER.encode()], id="decimals"
        ),
        pytest.param({"wkb": "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ==", "srid": 4326}, id="geometry"),
        pytest.param(["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], id="uuids"),
    ],
)
def test_a_value_that_was_not_sent_is_named_and_left_out(value: Any) -> None:
    found = row(event("u", after={**ROW, "big": value}))
    assert (found["__unavailable"], "big" in found, found["name"]) == (["big"], False, "a")


@pytest.mark.parametrize("value", [f"{PLACEHOLDER} ", [PLACEHOLDER, 1], [], {}, None, ""])
def test_other_values_are_values(value: Any) -> None:
    found = row(event("u", after={"big": value}))
    assert found["big"] == value
    assert "__unavailable" not in found


def test_the_list_names_columns_as_the_table_does() -> None:
    document = event("u", after={"id": 1, "bigText": PLACEHOLDER, "note": PLACEHOLDER})
    found = document_row(document, has_order=True, names_of=lambda fields: {"bigText": "big_text"})
    assert found["__unavailable"] == ["big_text", "note"]


def test_the_event_itself_stays_as_it_was() -> None:
    document = event("u", after={"id": 1, "big": PLACEHOLDER})
    row(document)
    assert document == event("u", after={"id": 1, "big": PLACEHOLDER})
