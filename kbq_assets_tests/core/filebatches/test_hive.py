"""Columns of hive-partitioned paths, and their types from the values in all files."""

from __future__ import annotations

from typing import Any

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.filebatches.hive import check_hive, hive_types, hive_values


@pytest.mark.parametrize(
    ("uri", "values"),
    [
        ("gs://b/t/dt=2020-01-02/region=US/a.csv", (("dt", "2020-01-02"), ("region", "US"))),
        ("gs://b/t/a.csv", ()),
        ("gs://b/t/x=1.csv", ()),
        ("gs://b/dt=/a.csv", (("dt", ""),)),
        ("gs://b/city=New%20York%2FNY/a.csv", (("city", "New York/NY"),)),
        ("gs://b/k=a=b/a.csv", (("k", "a=b"),)),
        ("gs://b/x y=1/z=2/a.csv", (("z", "2"),)),
        ("a.csv", ()),
    ],
    ids=[
        "two keys",
        "no keys",
        "a file is no directory",
        "an empty value",
        "an escaped value",
        "a value with an equals sign",
        "a directory that is no key",
        "no directory",
    ],
)
def test_directories_are_keys_and_values(uri: str, values: tuple[tuple[str, str], ...]) -> None:
    assert hive_values(uri) == values


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-20", "007"], "INT64"),
        (["9" * 18], "INT64"),
        (["9" * 19], "STRING"),
        (["2020-01-02", "2024-02-29"], "DATE"),
        (["2020-01-02", "2023-02-29"], "STRING"),
        (["2020-01-02", "1"], "STRING"),
        (["2020-W01-1"], "STRING"),
        (["20200102"], "INT64"),
        (["2020-1-2"], "STRING"),
        ([""], "STRING"),
        (["1", ""], "STRING"),
        (["1.5"], "STRING"),
        (["+1"], "STRING"),
        (["٣"], "STRING"),
    ],
)
def test_a_type_holds_for_the_values_of_all_files(values: list[str], kind: str) -> None:
    uris = [f"gs://b/k={value}/a.csv" for value in values]
    assert hive_types({}, uris) == hive_types({"mode": "AUTO"}, uris) == {"k": kind}
    assert hive_types({"mode": "STRINGS"}, uris) == {"k": "STRING"}


def test_keys_are_in_the_order_of_the_paths() -> None:
    uris = ["b/z=1/a=x/f", "b/z=2/a=y/f", "b/z=3/m=1/f"]
    assert list(hive_types({}, uris).items()) == [("z", "INT64"), ("a", "STRING"), ("m", "INT64")]
    assert hive_types({}, []) == {}


def test_declared_types_count_whatever_the_values_are() -> None:
    options = {"mode": "CUSTOM", "sourceUriPrefix": "gs://b/{dt:DATE}/{n:integer}/{s:String}"}
    check_hive(options)
    assert hive_types(options, ["gs://b/dt=x/n=y/s=1/f"]) == {"dt": "DATE", "n": "INT64", "s": "STRING"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mod": "AUTO", "fields": []}, "unknown key fields, mod"),
        ({"mode": "auto"}, "unknown mode 'auto'"),
        ({"mode": None}, "unknown mode None"),
        ({"mode": "CUSTOM"}, "mode CUSTOM needs keys"),
        ({"mode": "CUSTOM", "sourceUriPrefix": "gs://b/dt"}, "mode CUSTOM needs keys"),
        ({"sourceUriPrefix": "gs://b/{t:TIMESTAMP}"}, "t has the type TIMESTAMP, and not DATE, INT64"),
    ],
)
def test_what_kbq_does_not_honor_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^hivePartitioningOptions: ") as refused:
        check_hive(options)
    assert words in refused.value.message
    assert refused.value.next_step == "docs/file-batches.md#hive-partitions"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "STRINGS"},
        {"sourceUriPrefix": "gs://b/t"},
        {"mode": "AUTO", "requirePartitionFilter": True},
    ],
)
def test_other_options_pass(options: dict[str, Any]) -> None:
    check_hive(options)
