"""Key files: only the owner can read them, none is overwritten by mistake, and none is half-written."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbq_assets.adapters import key_files
from kbq_assets.core.errors import ConfigurationError, Refused

WRITES = {"create": key_files.create, "replace": key_files.replace}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """The kernel refuses every byte that is written to a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def everything_allowed() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda path: key_files.create(path, "secret"), 0o600),
        (lambda path: key_files.create(path, "secret", public=True), 0o644),
        (lambda path: key_files.replace(path, "secret"), 0o600),
    ],
    ids=["created", "public", "replaced"],
)
def test_a_file_is_its_owners_whatever_the_process_allows(
    tmp_path: Path, write: Callable[[Path], None], expected: int
) -> None:
    path = tmp_path / "key"
    with everything_allowed():
        write(path)
    assert (mode(path), key_files.read(path)) == (expected, "secret")


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key_files.create(path, "first")
    with pytest.raises(Refused, match="already exists") as raised:
        key_files.create(path, "second")
    assert "an overwritten key cannot be recovered" in raised.value.next_step
    assert key_files.read(path) == "first"


def test_a_link_is_not_followed_to_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused):
        key_files.create(tmp_path / "key", "secret")
    assert not (tmp_path / "elsewhere").exists()


def test_a_replaced_file_of_everybody_becomes_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key_files.create(path, "first", public=True)
    key_files.replace(path, "é")
    assert (mode(path), path.read_bytes(), os.listdir(tmp_path)) == (0o600, "é".encode(), ["key"])


def test_the_rest_of_a_process_that_died_is_replaced(tmp_path: Path) -> None:
    rest = tmp_path / ".key.new"
    rest.write_text("half a k", encoding="utf-8")
    rest.chmod(0o666)
    key_files.replace(tmp_path / "key", "secret")
    assert (mode(tmp_path / "key"), os.listdir(tmp_path)) == (0o600, ["key"])


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_folder_that_does_not_exist_is_an_error_with_the_path(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    path = tmp_path / "none" / "key"
    with pytest.raises(ConfigurationError, match="No such file or directory") as raised:
        write(path, "secret")
    assert str(path) in raised.value.message
    assert raised.value.next_step == "name a file in an existing folder"


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_disk_without_room_leaves_no_half_of_a_key(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    with no_room(), pytest.raises(ConfigurationError, match="was not written: File too large"):
        write(tmp_path / "key", "secret")
    assert os.listdir(tmp_path) == []


def test_a_disk_without_room_keeps_the_key_before(tmp_path: Path) -> None:
    key_files.create(tmp_path / "key", "first")
    with no_room(), pytest.raises(ConfigurationError, match="File too large"):
        key_files.replace(tmp_path / "key", "second")
    assert key_files.read(tmp_path / "key") == "first"


@pytest.mark.parametrize("what", ["nothing", "a folder", "bytes"])
def test_what_cannot_be_read_is_named_and_not_shown(tmp_path: Path, what: str) -> None:
    path = tmp_path / "key"
    if what == "a folder":
        path.mkdir()
    elif what == "bytes":
        path.write_bytes(b"secret\xff")
    with pytest.raises(ConfigurationError, match="cannot be read") as raised:
        key_files.read(path)
    assert str(path) in raised.value.message
    assert "secret" not in str(raised.value)
