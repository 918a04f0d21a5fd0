"""The tree keeps everything that a schema says. A visitor visits each named type once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kbq_assets.core.avro.canonical import canonical, named_types, recursive_record, shared_records
from kbq_assets.core.avro.tree import AvroType, Field, RecordType, Union, member_name, parse
from kbq_assets.core.avro.visitor import ColumnVisitor, SchemaVisitor, visit
from kbq_assets.core.errors import EncodingError
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.topics.business_time import BusinessTime
from kbq_assets.core.topics.personal import Pseudonyms, parse_decisions
from kbq_assets.wire.privacy.avro import rewriter
from kbq_assets.wire.privacy.tags import check_decided
from kbq_assets.wire.records.staged_schema import MetadataColumns, staged_schema

KEYS = Pseudonyms("a", {"a": bytes(32)})
LEVELS = 30


def bomb(leaf: Any = "string") -> dict[str, Any]:
    """A schema of 30 records, each of which uses the next one twice: 2**30 fields when expanded."""
    inner: Any = {"type": "record", "name": "L0", "fields": [{"name": "leaf", "type": leaf}]}
    for level in range(1, LEVELS):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"L{level - 1}"}]
        inner = {"type": "record", "name": f"L{level}", "fields": fields}
    return {
        "type": "record",
        "name": "Top",
        "fields": [{"name": "id", "type": "long"}, {"name": "x", "type": inner}],
    }


class Count(SchemaVisitor[int]):
    visited = 0

    def other(self, node: AvroType, inside: Sequence[int]) -> int:
        self.visited += 1
        return 1 + sum(inside)


def test_a_named_type_is_visited_once_and_counts_for_each_use() -> None:
    counter = Count()
    assert visit(parse(bomb()), counter) > 2**LEVELS
    assert counter.visited < 3 * LEVELS


def check(decisions: str, leaf: Any = "string") -> None:
    check_decided(bomb(leaf), parse_decisions(decisions))


@pytest.mark.parametrize(
    ("walk", "refused"),
    [
        (lambda: canonical(parse(bomb())), ""),
        (lambda: staged_schema(bomb(), MetadataColumns(business_time=BusinessTime())), ""),
        (lambda: staged_schema(bomb(), MetadataColumns(), ["x.a.b.a"]), "cannot be part of a table's name"),
        (lambda: columns_of(json.dumps(bomb())), "more than 15 levels"),
        (lambda: check(""), ""),
        (lambda: check("x:drop", {"type": "string", "pii": "HIGH"}), ""),
        (lambda: check("", {"type": "string", "pii": "HIGH"}), "more than 100000 fields"),
        (lambda: rewriter(bomb(), parse_decisions("x:drop"), KEYS), ""),
        (lambda: rewriter(bomb(), parse_decisions("id:drop"), KEYS), "more than 10000 times"),
        (lambda: rewriter(bomb(), parse_decisions("x.a.b.a.b:null"), KEYS), "more than 10000 times"),
    ],
)
def test_a_schema_that_uses_its_types_often_takes_no_longer(walk: Callable[[], Any], refused: str) -> None:
    started = time.process_time()
    if refused:
        with pytest.raises(EncodingError, match=refused):
            walk()
    else:
        walk()
    assert time.process_time() - started < 10


@pytest.mark.thorough
def test_columns_of_wide_records_that_are_used_often_are_counted_to_a_limit_only() -> None:
    inner: Any = {"type": "record", "name": "L0", "fields": [{"name": "leaf", "type": "int"}]}
    for level in range(1, 13):
        first = {"name": "f0", "type": inner}
        inner = {
            "type": "record",
            "name": f"L{level}",
            "fields": [first, *({"name": f"f{n}", "type": f"L{level - 1}"} for n in range(1, 6))],
        }
    with pytest.raises(EncodingError, match="more than 100000 columns"):
        columns_of(json.dumps(inner))


SAID = {
    "type": "record",
    "name": "n.R",
    "doc": "a row",
    "fields": [
        {
            "name": "a",
            "type": {"type": {"type": "string", "pii": "HIGH"}, "pii": "LOW"},
            "doc": "text",
            "default": "",
        },
        {"name": "k", "type": {"type": "enum", "name": "K", "symbols": ["X"], "doc": "kinds"}},
        {"name": "l", "type": {"type": "K", "pii": "LOW"}},
        {"name": "m", "type": ["null", "K", {"type": "map", "values": "n.K"}]},
    ],
}


def test_the_tree_keeps_what_a_schema_says_of_types_and_fields() -> None:
    record = parse(SAID)
    assert isinstance(record, RecordType)
    assert record.attributes["doc"] == "a row"
    a, k, wrapped, m = record.fields.values()
    assert (a.attributes["doc"], a.attributes["default"]) == ("text", "")
    assert list(a.type.values_of("pii")) == ["LOW", "HIGH"]
    assert k.type.attributes["doc"] == wrapped.type.attributes["doc"] == "kinds"
    assert list(wrapped.type.values_of("pii")) == ["LOW"]
    assert isinstance(m.type, Union)
    assert [list(branch.values_of("pii")) for branch in m.type.branches] == [[], [], []]
    assert [member_name(branch) for branch in m.type.branches] == ["null_value", "K_value", "map_value"]


class Paths(ColumnVisitor[None]):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def other(self, node: AvroType, inside: Sequence[None]) -> None:
        self.found.append(".".join(self.path))

    def field(self, field: Field, result: None) -> None:
        assert not self.path


def test_a_column_visitor_knows_its_place() -> None:
    paths = Paths()
    visit(parse(SAID), paths)
    assert paths.found == [
        "a",
        "k",
        "l",
        "m.null_value",
        "m.K_value",
        "m.map_value.value",
        "m.map_value",
        "m",
        "",
    ]


@pytest.mark.parametrize(("next_", "found"), [("long", ""), ("R", "R"), (["null", "R"], "R")])
def test_a_record_inside_itself_is_found(next_: Any, found: str) -> None:
    fields = [{"name": "a", "type": "int"}, {"name": "next", "type": {"type": "array", "items": next_}}]
    root = parse({"type": "record", "name": "R", "fields": fields})
    assert recursive_record(root) == found
    assert shared_records(root) == (frozenset({"R"}) if found else frozenset())
    assert named_types(root) == {"R"}
