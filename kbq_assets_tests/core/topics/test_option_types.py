"""Types of options: the text that each accepts, and errors that begin with the option's name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.observation.check_names import BLOCKABLE, CONTIGUOUS
from kbq_assets.core.topics import option_types
from kbq_assets.core.topics.declaration import Option, text_of
from kbq_assets.core.topics.option_types import OptionType, choice, whole
from kbq_assets.core.topics.topic_settings import OPTIONS, TopicSettings

BLOCKERS = ",".join(BLOCKABLE)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (choice("a", "b"), "b", "b"),
        (whole(), "0", 0),
        (whole(1), "1", 1),
        (option_types.TEXT, "", ""),
        (option_types.TEXT, " a,b ", " a,b "),
        (option_types.FLAG, "true", True),
        (option_types.FLAG, "false", False),
        (option_types.BACKUP, "only", "only"),
        (option_types.DAY, "1970-01-02", 1),
        (option_types.DAY, "0001-01-01", -719_162),
        (option_types.SHARE, "0", 0.0),
        (option_types.SHARE, "0.25", 0.25),
        (option_types.PRIORITY, "high", 8),
        (option_types.PRIORITY, "normal", 4),
        (option_types.PRIORITY, "low", 1),
        (option_types.PRIORITY, "1", 1),
        (option_types.PRIORITY, "100", 100),
        (option_types.ROUTE, "record_name", "record_name"),
        (option_types.TABLES, "", ()),
        (option_types.TABLES, "a,,b*,d.c", ("a", "b*", "d.c")),
        (option_types.CLUSTERING, "", ()),
        (option_types.CLUSTERING, "a,b,c,d", ("a", "b", "c", "d")),
        (option_types.PATHS, "", ()),
        (option_types.PATHS, "a,b.c,,_d", ("a", "b.c", "_d")),
        (option_types.PATH, "", ""),
        (option_types.PATH, "a.b", "a.b"),
        (option_types.WAREHOUSES, "", ()),
        (option_types.WAREHOUSES, "bq,lake", ("bq", "lake")),
        (option_types.CHECKS, "", frozenset()),
        (option_types.CHECKS, "none", frozenset()),
        (option_types.CHECKS, f"{CONTIGUOUS},none", frozenset({CONTIGUOUS})),
        (option_types.CHECKS, BLOCKERS, frozenset(BLOCKABLE)),
        (option_types.SCHEMA, "", None),
        (option_types.SCHEMA, "true", True),
        (option_types.SCHEMA, '{"type": "object"}', {"type": "object"}),
    ],
)
def test_a_text_of_its_type_is_a_value(type_: OptionType, text: str, value: Any) -> None:
    found = type_.parse("x", text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("type_", "text", "next_step"),
    [
        (choice("a", "b"), "c", "one of a, b"),
        (choice("a", "b"), "A", "one of a, b"),
        (whole(), "-1", "0 or more"),
        (whole(1), "0", "1 or more"),
        (whole(), "", "expected int"),
        (whole(), "1.5", "expected int"),
        (whole(), "9" * 5000, "expected int"),
        (option_types.FLAG, "True", "true or false"),
        (option_types.FLAG, "", "true or false"),
        (option_types.BACKUP, "yes", "one of true, false, only"),
        (option_types.DAY, "2000-02-30", "x=2000-01-01"),
        (option_types.DAY, "", "x=2000-01-01"),
        (option_types.SHARE, "-0.1", "0 or more"),
        (option_types.SHARE, "nan", "0 or more"),
        (option_types.SHARE, "5%", "expected float"),
        (option_types.PRIORITY, "0", "high, normal, low, or a whole number from 1 to 100"),
        (option_types.PRIORITY, "101", "high, normal, low, or a whole number from 1 to 100"),
        (option_types.PRIORITY, "1.5", "high, normal, low, or a whole number from 1 to 100"),
        (option_types.PRIORITY, "٣", "high, normal, low, or a whole number from 1 to 100"),
        (option_types.PRIORITY, "9" * 5000, "high, normal, low, or a whole number from 1 to 100"),
        (
            option_types.ROUTE,
            "orders_{key}",
            "topic or record_name; to choose a table per record, use a template in table=",
        ),
        (option_types.CLUSTERING, "a,b,c,d,e", "at most 4 columns: x=a,b"),
        (option_types.CLUSTERING, "a,", "at most 4 columns: x=a,b"),
        (option_types.CLUSTERING, "a.b", "at most 4 columns: x=a,b"),
        (option_types.PATHS, "a,a", "columns: x=a,b.c"),
        (option_types.PATHS, "a..b", "columns: x=a,b.c"),
        (option_types.PATHS, "a b", "columns: x=a,b.c"),
        (option_types.PATHS, "1a", "columns: x=a,b.c"),
        (option_types.PATHS, "a" * 301, "columns: x=a,b.c"),
        (option_types.PATH, "a,b", "one column: x=a"),
        (option_types.PATH, "a-b", "columns: x=a,b.c"),
        (option_types.WAREHOUSES, "a,a", "names of KBQ_WAREHOUSE: x=bq,lake"),
        (option_types.WAREHOUSES, "a,", "names of KBQ_WAREHOUSE: x=bq,lake"),
        (option_types.CHECKS, "lag_is_short", f"none, or {', '.join(BLOCKABLE)}"),
        (option_types.CHECKS, "nonsense", f"none, or {', '.join(BLOCKABLE)}"),
        (option_types.SCHEMA, "{", "a JSON Schema"),
        (option_types.SCHEMA, "[" * 100_000, "a JSON Schema"),
    ],
)  # fmt: skip
def test_another_text_is_refused_by_name_with_what_is_right(
    type_: OptionType, text: str, next_step: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        type_.parse("x", text)
    assert caught.value.message.startswith(("x=", "x:"))
    assert caught.value.next_step == next_step


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_a_default_is_a_text_of_its_type(option: Option) -> None:
    value = option.type.parse(option.name, option.default)
    if option.type.choices and option.type.kind != "switch":
        assert value in option.type.choices
    if option.type.kind in ("boolean", "integer", "number"):
        assert option.type.parse(option.name, text_of(value)) == value


WORDS = st.sampled_from(
    ["", "a", "-1", "0", "1", "true", "a,b", ",", "a:b:c", "{", "{key}", "{topic.2}", "auto", "a|b:epoch_s", "none",
     "_key:keep", "a:truncate:²", "a:truncate:" + "9" * 5000, "9" * 5000, "\ud800", "2000-01-01", "*", "..", "'"]
) | st.text(max_size=8)  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_any_text_is_a_value_or_a_mistake_of_its_line_alone(name: str) -> None:
    @settings(max_examples=15, deadline=None, database=None)
    @given(WORDS)
    def holds(text: str) -> None:
        try:
            TopicSettings().with_options(**{name: text})
        except ConfigurationError as error:
            assert error.message

    holds()
