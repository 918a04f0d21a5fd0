"""Processes that open the file one after another see each other's commits."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse, database
from kbq_assets.adapters.duckdb.database import DuckDbDatabase
from kbq_assets.adapters.local_store.locks import try_lock
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets_tests.contracts.processes import forked_pool

PROCESSES, CHANGES = 4, 400


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A warehouse with a counter."""
    path = tmp_path / "warehouse.duckdb"
    with DuckDbDatabase(path).writing() as connection:
        connection.execute("CREATE TABLE counter AS SELECT 0 AS n")
    return path


def count(path: Path, changes: int) -> None:
    """Raise the counter, in a transaction each, without pauses: a lock is taken the moment it is free."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_FIRST_PAUSE", 0.0005)
        patch.setattr(database, "_LONGEST_PAUSE", 0.001)
        for _ in range(changes):
            with DuckDbDatabase(path).writing() as connection:
                connection.execute("UPDATE counter SET n = n + 1")


@pytest.mark.thorough
def test_no_process_loses_what_another_one_has_committed(path: Path) -> None:
    with forked_pool(PROCESSES, __name__) as pool:
        for ended in [pool.submit(count, path, CHANGES) for _ in range(PROCESSES)]:
            ended.result()
    with DuckDbDatabase(path).reading() as connection:
        assert connection.execute("SELECT n FROM counter").fetchall() == [(PROCESSES * CHANGES,)]


@pytest.mark.parametrize("shared", [False, True], ids=["a_writer", "a_reader"])
def test_nobody_opens_the_file_while_another_process_of_kbq_may_still_close_it(
    path: Path, shared: bool
) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert try_lock(descriptor, shared=shared)
        hasty = DuckDbWarehouse(path, lock_timeout_seconds=0.2)
        with pytest.raises(Unavailable, match=f"locked by process {os.getpid()},"), hasty._writing():
            raise AssertionError
        if shared:
            assert hasty.tables() == ()
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        with hasty._writing():
            assert not try_lock(descriptor, shared=True)
        assert try_lock(descriptor)
    finally:
        os.close(descriptor)


def test_a_file_that_nobody_may_open_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(ConfigurationError, match=r"warehouse.duckdb cannot be opened: .*Permission denied"):
        DuckDbWarehouse(path).tables()
