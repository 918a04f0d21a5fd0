"""Done files: the guarantees of their names, and which names are valid."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.done_files import DoneFileName, check_fits, done_path
from kbq_assets.core.protocol.names import MAX_BASE_NAME, StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests import strategies
from kbq_assets_tests.strategies import staged_file

TABLE = TableReference("sales", "orders")
TP = TopicPartition("shop.orders", 3)
KNOWN = frozenset({"shop.orders", "t"})


def test_a_done_file_names_the_last_position_that_its_file_covers() -> None:
    file = staged_file(10, 15)
    assert file.done.last_offset == 14
    assert file.done.format() == done_path(file.path, file.until)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("done/shop.orders.3.sales.orders.7.10.19.done", DoneFileName(TP, TABLE, 7, 10, 19)),
        ("done/shop.orders.3.sales.orders.0.0.0.done", DoneFileName(TP, TABLE, 0, 0, 0)),
        ("shop.orders.3.sales.orders.7.10.19.done", DoneFileName(TP, TABLE, 7, 10, 19)),
    ],
)
def test_the_full_form_is_read_with_or_without_its_folder(path: str, name: DoneFileName) -> None:
    assert DoneFileName.parse(path) == name


@pytest.mark.parametrize(
    "path",
    [
        "done/u.3.sales.orders.10.19.done",  # an unknown topic
        "done/shop.orders.3.sales.7.10.19.done",  # or is 7 the schema id of a table `sales`?
        "done/shop.orders.3.sales.orders.19.10.done",
        "done/shop.orders.3.sales.orders.10.019.done",
        "done/shop.orders.x.sales.orders.10.19.done",
        "done/shop.orders.3.sales.orders.10.19.avro",
        "done/orders.10.19.done",
    ],
)
def test_what_is_not_the_short_form_of_a_known_topic_is_refused(path: str) -> None:
    with pytest.raises(InvalidName, match="is not a name that KBQ writes") as caught:
        DoneFileName.parse_short(path, KNOWN)
    assert caught.value.next_step.startswith("expected ")


@pytest.mark.parametrize(
    ("path", "topic", "schema_id"),
    [
        pytest.param("done/t.0.d.t.7.10.19.done", "t", 7, id="full form of a known topic"),
        pytest.param("done/u.0.d.t.7.10.19.done", "u", 7, id="full form of an unknown topic"),
        pytest.param("done/t.0.d.t.10.19.done", "t", None, id="short form"),
        pytest.param("done/a.t.0.d.x.10.19.done", "a.t", None, id="short form that looks like a full one"),
    ],
)
def test_bootstrap_takes_the_form_whose_topic_is_known(path: str, topic: str, schema_id: int | None) -> None:
    known = frozenset({"t", "a.t"})
    name = DoneFileName.parse_bootstrap(path, known)
    assert (name.topic_partition.topic, name.schema_id) == (topic, schema_id)


def test_bootstrap_prefers_the_full_form_if_both_topics_are_known() -> None:
    full = DoneFileName.parse_bootstrap("done/a.b.1.d.t.7.10.19.done", frozenset({"a.b", "a.b.1"}))
    assert full.topic_partition == TopicPartition("a.b", 1)


@pytest.mark.parametrize("path", ["", "done/", "done/x.done", "x", "done/t.0.d.t.7.9.5.done"])
def test_bootstrap_refuses_what_has_neither_form(path: str) -> None:
    with pytest.raises(InvalidName):
        DoneFileName.parse_bootstrap(path, KNOWN)


def test_a_name_that_no_file_system_holds_is_refused() -> None:
    name = DoneFileName(TopicPartition("t" * 200, 0), TABLE, 1, 0, 9)
    assert name.format()
    with pytest.raises(InvalidName, match="over 255"):
        dataclasses.replace(name, table=TableReference("d", "x" * 60)).format()


def longest_that_fits(topic: str) -> TableReference:
    """The longest table name for the files of a topic."""
    for size in range(200, 0, -1):
        table = TableReference("d", "t" * size)
        try:
            return check_fits(topic, table)
        except InvalidName:
            continue
    raise AssertionError(topic)


@pytest.mark.parametrize("topic", ["t", "t" * 100, "t" * 150])
def test_a_table_fits_if_the_largest_numbers_fit_into_its_names(topic: str) -> None:
    table = longest_that_fits(topic)
    largest = DoneFileName(TopicPartition(topic, 2**31 - 1), table, 2**31 - 1, 2**63 - 1, 2**63 - 1)
    base = largest.format().removeprefix("done/")
    assert len(base) == MAX_BASE_NAME or len(table.table) == 200
    assert DoneFileName.parse(largest.format()) == largest


def test_a_table_that_does_not_fit_names_the_options_that_help() -> None:
    with pytest.raises(InvalidName, match=r"files for table d\.t+ can grow beyond 255 bytes") as caught:
        check_fits("t" * 150, TableReference("d", "t" * 100))
    assert (
        caught.value.next_step == "give the topic a shorter table or dataset (options `table` and `dataset`)"
    )


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["t", "a", "0", "7", "12", "x"]), min_size=6, max_size=9))
def test_no_path_has_both_forms(parts: list[str]) -> None:
    path = f"done/{'.'.join(parts)}.done"
    known = frozenset(".".join(parts[:n]) for n in range(1, 5))
    with contextlib.suppress(InvalidName):
        DoneFileName.parse(path)
        with pytest.raises(InvalidName):
            DoneFileName.parse_short(path, known)


@settings(max_examples=25)
@given(strategies.staged_names)
def test_the_path_of_a_done_file_needs_no_parsing(name: StagedFileName) -> None:
    until = name.first_offset + 1
    wanted = DoneFileName(name.topic_partition, name.table, name.schema_id, name.first_offset, until - 1)
    assert done_path(name.format(), until) == wanted.format()
