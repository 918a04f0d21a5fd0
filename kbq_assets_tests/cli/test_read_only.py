"""Read-only commands need no write permission, and write nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.errors import ConfigurationError
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import UNKNOWN_SCHEMA, FakePlatform
from kbq_assets_tests.fakes.warehouse import FakeWarehouse

_CHANGES = ("mkdir", "link", "rename", "unlink", "rmdir", "utime", "truncate")


@pytest.fixture
def staging(world: FakePlatform, tmp_path: Path) -> Path:
    """The staging area of ``world`` in a folder."""
    folder = tmp_path / "staging"
    world.store = LocalObjectStore(folder, durable=False)  # type: ignore[assignment]
    root = len(str(folder.resolve())) + 1
    world.warehouse = FakeWarehouse(world.store, lambda uri: urlparse(uri).path[root:])
    return folder


def mount_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every change of a file system fails as on a read-only one."""

    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def open_to_read(
        path: Any, flags: int, *args: Any, opened: Callable[..., int] = os.open, **options: Any
    ) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            refuse()
        return opened(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", open_to_read)
    for name in _CHANGES:
        monkeypatch.setattr(os, name, refuse)


def test_a_read_only_staging_area_can_be_read(
    world: FakePlatform, run: Shell, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.produce(3)
    run.done("extract")
    run.done("load")
    world.produce(value=UNKNOWN_SCHEMA)
    run("extract")
    run.done("park", "--table", "shop.orders", "--yes")
    with monkeypatch.context() as patched:
        mount_read_only(patched)
        world.store = LocalObjectStore(staging)  # type: ignore[assignment]
        assert "1 stopped, 1 parked" in run.done("status")
        assert "unknown_schema" in run.done("plan")
        assert "operator" in run("check").output
        assert "every record accounted for" in run("reconcile").output
        with pytest.raises(ConfigurationError, match="mount the store's file system for writing"):
            world.store.create("a", b"")


@pytest.mark.parametrize("command", ["status", "plan", "check", "reconcile"])
def test_reading_a_staging_area_that_does_not_exist_creates_nothing(
    world: FakePlatform, run: Shell, staging: Path, command: str
) -> None:
    run(command)
    assert not staging.exists()
