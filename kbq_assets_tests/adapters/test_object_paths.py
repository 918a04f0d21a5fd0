"""Paths of objects: those that every store accepts, and those that none accepts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.adapters.object_paths import MAX_PATH, check_path, is_path
from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.names import MAX_BASE_NAME


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "commits/t.json",
        "a/.b",
        "a/..b/...",
        "a b/c=1/%2F/#?*",
        "a..",
        "ü/日本",
        "a/" + "b" * MAX_BASE_NAME,
        "ü" * (MAX_BASE_NAME // 2),
        "/".join(["x" * 204] * 5),
    ],
    ids=lambda path: path[:20],
)
def test_a_path_of_names_is_returned_as_it_is(path: str) -> None:
    assert check_path(path) == path
    assert is_path(path)


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("", "relative"),
        ("/", "relative"),
        ("/a", "relative"),
        ("a/", "relative"),
        ("a//b", "relative"),
        (".", "relative"),
        ("..", "relative"),
        (".a", "do not start with a dot"),
        ("./a", "relative"),
        ("a/.", "relative"),
        ("a/../b", "relative"),
        ("a/./b", "relative"),
        ("a\0", "printable"),
        ("a\n", "printable"),
        ("a\u200b", "printable"),
        ("a\udcff", "printable"),
        ("a\xa0b", "printable"),
        ("b" * (MAX_BASE_NAME + 1), "255 between two"),
        ("a/" + "ü" * (MAX_BASE_NAME // 2 + 1) + "/b", "255 between two"),
        ("/".join(["x" * 204] * 5) + "x", "at most 1024 bytes"),
        ("/".join(["ü" * 102] * 5) + "x", "at most 1024 bytes"),
    ],
    ids=lambda part: ascii(part[:20]),
)
def test_what_is_no_path_is_refused_with_the_rule(path: str, rule: str) -> None:
    with pytest.raises(InvalidName, match="cannot be the path of an object") as raised:
        check_path(path)
    assert rule in raised.value.next_step
    assert not is_path(path)


@given(st.lists(st.text(st.sampled_from("ab./ü\0"), max_size=6), max_size=4).map("/".join))
@settings(max_examples=60)
def test_a_path_leads_nowhere_but_down(path: str) -> None:
    parts = path.split("/")
    assert is_path(path) == (
        "\0" not in path
        and not path.startswith(".")
        and all(part not in ("", ".", "..") for part in parts)
        and len(path.encode()) <= MAX_PATH
    )
