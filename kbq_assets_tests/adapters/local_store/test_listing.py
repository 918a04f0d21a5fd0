"""Listings of a folder: ordered as plain strings for any tree, and only objects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.adapters.local_store.listing import list_objects, list_paths

PATHS = ["a-b", "a/b-c", "a/b/c", "a/c", "a0", "b.d/e", "b/z", "ü/é"]


def listed(root: Path, prefix: str = "", start_after: str = "") -> list[str]:
    return [entry.path for entry in list_objects(f"{root}/", prefix, start_after)]


def written(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(path.encode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    written(tmp_path, *PATHS)
    return tmp_path


@pytest.mark.parametrize(
    "prefix", ["", "a", "a/", "a/b", "a/b/", "b", "b.", "ü/", "c", "a0x", "a/b/c/d", "x/y/z"]
)
def test_a_prefix_is_one_of_plain_strings(root: Path, prefix: str) -> None:
    assert listed(root, prefix) == [path for path in PATHS if path.startswith(prefix)]


@given(
    prefix=st.sampled_from(["", "a", "a/", "a/b", "b"]),
    start=st.text(st.sampled_from("abc/.-0z"), max_size=5),
)
@settings(max_examples=80)
def test_a_listing_goes_on_after_any_text(
    tmp_path_factory: pytest.TempPathFactory, prefix: str, start: str
) -> None:
    root = tmp_path_factory.getbasetemp() / "listing"
    if not root.exists():
        written(root, *PATHS)
    assert listed(root, prefix, start) == [path for path in PATHS if path.startswith(prefix) and path > start]


def test_an_entry_has_the_size_and_times_of_its_file(tmp_path: Path) -> None:
    written(tmp_path, "a/b")
    os.utime(tmp_path / "a/b", ns=(1_234_567_890, 1_234_567_890))
    [entry] = list_objects(f"{tmp_path}/", "", "")
    assert (entry.path, entry.size, entry.updated_ms) == ("a/b", 3, 1_234)
    assert entry.generation == 1_234_567_890


@pytest.mark.parametrize("name", [".store", ".a/b"])
def test_the_stores_own_files_are_no_objects(tmp_path: Path, name: str) -> None:
    written(tmp_path, name, "a/.b")
    assert listed(tmp_path) == ["a/.b"], "below the top a name may begin with a dot"


def test_what_is_no_file_is_no_object(tmp_path: Path) -> None:
    written(tmp_path, "a")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    (tmp_path / "folder").symlink_to(tmp_path / "empty")
    (tmp_path / "new\nline").write_bytes(b"")
    assert listed(tmp_path) == ["a"]
    assert list(list_paths(f"{tmp_path}/", "", "")) == ["a"]


def test_a_folder_that_does_not_exist_has_no_objects(tmp_path: Path) -> None:
    written(tmp_path, "file")
    assert listed(tmp_path, "none/") == []
    assert listed(tmp_path, "file/") == [], "a file is no folder"


def test_a_file_that_is_deleted_during_a_listing_is_left_out(tmp_path: Path) -> None:
    written(tmp_path, "a", "b", "c/d", "e")
    found = list_objects(f"{tmp_path}/", "", "")
    assert next(found).path == "a"
    (tmp_path / "b").unlink()
    (tmp_path / "c/d").unlink()
    (tmp_path / "c").rmdir()
    assert [entry.path for entry in found] == ["e"]
