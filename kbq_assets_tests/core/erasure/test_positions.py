"""Positions as people and other commands write them."""

from __future__ import annotations

import json

import pytest

from kbq_assets.core.erasure.positions import RecordPosition, parse_positions
from kbq_assets.core.errors import ConfigurationError

FIRST, SECOND = RecordPosition(0, 4711), RecordPosition(3, 9, 2)


@pytest.mark.parametrize(
    "text",
    [
        "0 4711\n\n3\t9 2\n",
        '{"topic": "t", "partition": 0, "offset": 4711, "key": "anna"}\n'
        '{"_kafka_topic": "t", "_kafka_partition": 3, "_kafka_offset": 9, "_kbq_epoch": 2}',
        json.dumps([{"partition": 0, "offset": 4711}, {"partition": 3, "offset": 9, "epoch": 2}], indent=1),
    ],
)
def test_positions_are_read_in_every_form_that_commands_print(text: str) -> None:
    assert list(parse_positions(text, "t")) == [FIRST, SECOND]


def test_nothing_is_no_position() -> None:
    assert list(parse_positions("\n", "t")) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "entry 1"),
        ("0 1 2 3", "entry 1"),
        ("0 1\nanna 2", "entry 2"),
        ("0 -1", "below 0"),
        ('{"partition": 0}', "entry 1"),
        ('{"partition": 0, "offset": 1}\nanna', "entry 2"),
        ("[7]", "entry 1"),
        ('{"topic": "u", "partition": 0, "offset": 1}', "another topic"),
    ],
)
def test_anything_else_is_refused_without_repeating_it(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        list(parse_positions(text, "t"))
    assert "anna" not in str(refused.value)


@pytest.mark.parametrize("number", ["4.7", "4.0", "1e3", "1e999", "true", "[4]", "{}"])
def test_a_number_that_is_not_whole_names_no_record(number: str) -> None:
    for fields in (f'"partition": 0, "offset": {number}', f'"partition": {number}, "offset": 1'):
        with pytest.raises(ConfigurationError, match="entry 1 is not a position"):
            list(parse_positions(f"{{{fields}}}", "t"))


def test_numbers_in_quotes_are_whole_numbers() -> None:
    assert list(parse_positions('{"partition": "0", "offset": "4711"}', "t")) == [FIRST]
    assert list(parse_positions('{"errors": [{"partition": 3, "offset": 9, "epoch": "2"}]}', "t")) == [SECOND]
