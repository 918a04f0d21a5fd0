"""Columns of a replay become columns of its live topic, or it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.topics.column_names import AS_WRITTEN, SNAKE_CASE
from kbq_assets.core.topics.json.inference import InferredSchema
from kbq_assets.core.topics.json.merging import merged

START = InferredSchema().grown([{"n": 1, "o": {"p": 1}, "l": [{"a": 1}], "s": ["t"]}])


def grown(*documents: Any, style: str = AS_WRITTEN, start: InferredSchema = START) -> InferredSchema:
    for document in documents:
        start = start.grown([document], style=style)
    return start


def test_columns_of_either_side_are_columns_of_the_merged_schema_at_every_depth() -> None:
    live = grown({"y": "a"}, {"o": {"q": True}})
    other = grown({"x": 1, "o": {"r": 1.5}, "l": [{"b": "c"}]})
    found = merged(live, other, AS_WRITTEN, again="again")
    assert found.version == live.version + 1
    assert (
        found.root.columns
        == grown({"y": "a", "x": 1, "o": {"q": True, "r": 1.5}, "l": [{"b": "c"}]}).root.columns
    )
    assert merged(found, other, AS_WRITTEN, again="again") == found
    assert merged(found, live, AS_WRITTEN, again="again") == found
    assert [each.key for each in found.root.fields][: len(live.root.fields)] == [
        e.key for e in live.root.fields
    ]


@pytest.mark.parametrize(
    ("live", "other", "style", "why"),
    [
        ({"x": "a"}, {"x": 1}, AS_WRITTEN, "field x is STRING, and INT64 in the replay"),
        ({"o": {"x": 1}}, {"o": {"x": 1.5}}, AS_WRITTEN, "field o.x is INT64, and FLOAT64 in the replay"),
        ({"l": [{"x": 1}]}, {"l": [{"x": [1]}]}, AS_WRITTEN, "field l.x is INT64, and LIST in the replay"),
        ({"k": [1]}, {"k": ["a"]}, AS_WRITTEN, "field k is INT64, and STRING in the replay"),
        ({"a-b": 1}, {"a_b": 1}, AS_WRITTEN, "field a_b has the column a_b of the field a-b in the replay"),
        ({"aB": 1}, {"a_b": 1}, SNAKE_CASE, "field a_b has the column a_b of the field aB in the replay"),
    ],
)  # fmt: skip
def test_a_field_with_another_column_or_type_is_refused(live: Any, other: Any, style: str, why: str) -> None:
    with pytest.raises(Refused) as caught:
        merged(grown(live, style=style), grown(other, style=style), style, again="replay again")
    assert (caught.value.message, caught.value.next_step) == (why, "replay again")


def test_a_field_whose_column_depends_on_the_order_of_fields_is_refused() -> None:
    live, other = grown({"a-b": 1}, {"a_b": 1}), grown({"a_b": 1}, {"a-b": 1})
    with pytest.raises(Refused, match=r"field a_b has the column a_b of the field a-b"):
        merged(live, other, AS_WRITTEN, again="replay again")
