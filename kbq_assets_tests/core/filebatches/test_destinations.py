"""A path determines the table of a batch. The keys of a destinationTable take precedence."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import ConfigurationError, InvalidName
from kbq_assets.core.filebatches.destinations import (
    DEFAULT_REGEX,
    FileDestination,
    compile_regex,
    destination_of,
)
from kbq_assets.core.protocol.names import TableReference

ORDERS = TableReference("ds", "orders")


def found(path: str, regex: str = DEFAULT_REGEX, **fixed: str) -> FileDestination:
    return destination_of(path, compile_regex(regex, "here"), fixed)


@pytest.mark.parametrize(
    ("path", "fixed", "target"),
    [
        ("ds/orders/_SUCCESS", {}, ("", ORDERS, "")),
        ("proj.ds/orders/_SUCCESS", {}, ("proj", ORDERS, "")),
        ("example.com.ds/orders/_SUCCESS", {}, ("example.com", ORDERS, "")),
        ("proj.ds/orders/_SUCCESS", {"tableId": "x"}, ("proj", TableReference("ds", "x"), "")),
        ("proj.ds/orders/_SUCCESS", {"projectId": "own"}, ("own", ORDERS, "")),
        ("proj.ds/orders/_SUCCESS", {"datasetId": "other"}, ("", TableReference("other", "orders"), "")),
        ("ds/orders/2020/_SUCCESS", {"tableId": "x$2021"}, ("", TableReference("ds", "x"), "$2021")),
        ("ds/orders/2020/_SUCCESS", {"tableId": "x"}, ("", TableReference("ds", "x"), "$2020")),
        (
            "ds/orders/_SUCCESS",
            {"projectId": "p", "datasetId": "d", "tableId": "t"},
            ("p", TableReference("d", "t"), ""),
        ),
    ],
    ids=[
        "a path",
        "a path with a project",
        "a project of a domain",
        "another table of the path's project",
        "another project",
        "another dataset is of no project of the path",
        "a table with a partition",
        "the path's partition of another table",
        "everything is fixed",
    ],
)
def test_each_key_replaces_its_part_of_the_path(
    path: str, fixed: dict[str, str], target: tuple[str, TableReference, str]
) -> None:
    destination = found(path, **fixed)
    assert (destination.project, destination.table, destination.decorator) == target


@pytest.mark.parametrize(
    ("path", "decorator"),
    [
        ("ds/orders/2020/_SUCCESS", "$2020"),
        ("ds/orders/2020/01/_SUCCESS", "$202001"),
        ("ds/orders/2020/01/02/_SUCCESS", "$20200102"),
        ("ds/orders/2020/01/02/03/_SUCCESS", "$2020010203"),
        ("ds/orders/$2020/_SUCCESS", "$2020"),
        ("ds/orders/historical/2020/01/_SUCCESS", "$202001"),
        ("ds/orders/a_batch/_SUCCESS", ""),
    ],
)
def test_the_directories_of_a_day_name_a_partition(path: str, decorator: str) -> None:
    assert found(path).decorator == decorator
    assert found(path).prefix == "ds/orders"


@pytest.mark.parametrize("partition", ["$20", "$20200", "$2020010", "$202001020", "$20200102030"])
def test_a_partition_of_another_length_is_refused(partition: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a partition") as refused:
        found(f"ds/orders/{partition}/_SUCCESS")
    assert partition in refused.value.message


MINE = r"(?P<table>\w+)/(?P<yyyy>\d+)-(?P<mm>\d+)(?:-(?P<dd>\d+))?/"


@pytest.mark.parametrize(
    ("path", "decorator"), [("orders/2020-1/_SUCCESS", "$202001"), ("orders/2020-12-3/_SUCCESS", "$20201203")]
)
def test_parts_of_a_day_are_padded(path: str, decorator: str) -> None:
    assert found(path, MINE, datasetId="ds").decorator == decorator


@pytest.mark.parametrize(
    ("path", "regex", "words", "advice"),
    [
        (
            "orders",
            DEFAULT_REGEX,
            f"does not match the expression {DEFAULT_REGEX}, so",
            "KBQ_FILES_DESTINATION_REGEX",
        ),
        ("x//_SUCCESS", r"x/(?P<table>\w*)/?", "does not match", "destinationRegex"),
        ("orders/2020-1/_SUCCESS", MINE, "finds no dataset", "(?P<dataset>...)"),
        ("p./orders/_SUCCESS", DEFAULT_REGEX, "finds no dataset", "destinationTable with datasetId"),
    ],
    ids=["another path", "an empty table", "no dataset", "a project alone"],
)
def test_a_path_without_table_or_dataset_is_refused(path: str, regex: str, words: str, advice: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        found(path, regex)
    assert words in refused.value.message
    assert advice in refused.value.next_step


def test_a_name_that_no_table_can_have_is_refused() -> None:
    with pytest.raises(InvalidName):
        found("d-s/orders/_SUCCESS")


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        ("(", "is not a regular expression"),
        ("(?P<dataset>.*)", "has no group"),
        ("a{99999999999999}", "is not a regular expression"),
    ],
)
def test_an_expression_that_finds_no_table_is_refused_where_it_stands(regex: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^load.json of x: .*{words}"):
        compile_regex(regex, "load.json of x")


def test_the_batch_of_an_expression_is_its_id() -> None:
    assert found("ds/orders/2020/01/02/03/run-7/_SUCCESS").batch_id == "run-7"
