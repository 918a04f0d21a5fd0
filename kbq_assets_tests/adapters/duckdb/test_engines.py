"""Engines outlive their files, and leave nothing of a file behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from kbq_assets.adapters.duckdb import engines


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[duckdb.DuckDBPyConnection]]:
    """The engines that a test started."""
    found: list[duckdb.DuckDBPyConnection] = []
    connect = duckdb.connect

    def noting(*args: object, **options: object) -> duckdb.DuckDBPyConnection:
        found.append(connect(*args, **options))  # type: ignore[arg-type]
        return found[-1]

    with engines.none_idle():
        monkeypatch.setattr(duckdb, "connect", noting)
        yield found


def run(path: Path, sql: str, read_only: bool = False) -> list[tuple[object, ...]]:
    file = engines.attach(path, read_only)
    try:
        return file.connection.execute(sql).fetchall()
    finally:
        file.close()


def test_files_one_after_the_other_share_an_engine(
    tmp_path: Path, started: list[duckdb.DuckDBPyConnection]
) -> None:
    for name in ("one", "two"):
        run(tmp_path / f"{name}.duckdb", f"CREATE TABLE t AS SELECT '{name}' AS x")
    for name in ("one", "two"):
        assert run(tmp_path / f"{name}.duckdb", "SELECT x FROM t", read_only=True) == [(name,)]
    assert len(started) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.duckdb", "two.duckdb"]


def test_files_at_once_have_an_engine_each(tmp_path: Path, started: list[duckdb.DuckDBPyConnection]) -> None:
    paths = [tmp_path / str(number) / "same.duckdb" for number in range(4)]
    for path in paths:
        path.parent.mkdir()
    files = [engines.attach(path, read_only=False) for path in paths]
    for number, file in enumerate(files):
        file.connection.execute(f"CREATE TABLE t AS SELECT {number} AS x")
    for file in files:
        file.close()
    assert len(started) == 4
    assert [run(path, "SELECT x FROM t") for path in paths] == [[(number,)] for number in range(4)]
    assert len(started) == 4  # two stayed


@pytest.mark.parametrize("stem", ["memory", "Memory", "temp", "system", 'it\'s "quoted" here', "a.b"])
def test_a_file_may_have_any_name(tmp_path: Path, stem: str) -> None:
    path = tmp_path / f"{stem}.duckdb"
    run(path, "CREATE SCHEMA s; CREATE TABLE s.t AS SELECT 1 AS x")
    assert run(path, "SELECT x FROM s.t", read_only=True) == [(1,)]
    with duckdb.connect(str(path), read_only=True) as other:
        assert other.execute("SELECT x FROM s.t").fetchall() == [(1,)]


def test_the_name_of_a_file_is_the_one_that_duckdb_gives_it(tmp_path: Path) -> None:
    for stem in ("warehouse", "a.b", "temp", "system", "main"):
        path = tmp_path / f"{stem}.duckdb"
        attached = run(path, "SELECT current_database()")
        with duckdb.connect(str(path)) as connected:
            assert attached == connected.execute("SELECT current_database()").fetchall()


def test_what_a_connection_left_open_is_rolled_back_and_its_temporary_tables_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    run(path, "CREATE TABLE t (x INTEGER)")
    run(path, "CREATE TEMP TABLE passing AS SELECT 1 AS x; BEGIN; INSERT INTO t VALUES (1)")
    assert run(path, "SELECT count(*) FROM t") == [(0,)]
    assert run(path, "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'passing'") == [(0,)]


@pytest.mark.thorough
def test_an_engine_that_spilled_ends_with_its_folder(
    tmp_path: Path, started: list[duckdb.DuckDBPyConnection]
) -> None:
    path = tmp_path / "w.duckdb"
    file = engines.attach(path, read_only=False)
    file.connection.execute("SET threads = 1")
    file.connection.execute("SET memory_limit = '150MB'")
    file.connection.execute(
        "CREATE TABLE t AS SELECT md5(range::VARCHAR) AS x FROM range(4000000) ORDER BY x"
    )
    assert Path(f"{path}.tmp").exists()
    file.close()
    assert not Path(f"{path}.tmp").exists()
    assert run(tmp_path / "other.duckdb", "SELECT current_setting('memory_limit')") == [("953.6 MiB",)]
    assert len(started) == 2


def test_an_engine_that_failed_ends(tmp_path: Path, started: list[duckdb.DuckDBPyConnection]) -> None:
    (damaged := tmp_path / "damaged.duckdb").write_bytes(b"no database" * 1000)
    for _ in range(2):
        with pytest.raises(duckdb.IOException, match="not a valid DuckDB database"):
            engines.attach(damaged, read_only=False)
    assert len(started) == 2
    with pytest.raises(duckdb.ConnectionException, match="already closed"):
        started[1].execute("SELECT 1")


@pytest.mark.thorough
def test_a_forked_process_starts_its_own(tmp_path: Path) -> None:
    program = f"""
import os
from pathlib import Path
from kbq_assets.adapters.duckdb import engines
path = Path({str(tmp_path / "w.duckdb")!r})
engines.attach(path, read_only=False).close()
if not (child := os.fork()):
    file = engines.attach(path, read_only=False)
    file.connection.execute("CREATE TABLE t AS SELECT range AS x FROM range(1000000)")
    file.close()
    raise SystemExit
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=300, env={**os.environ}, check=False)
    assert done.returncode == 0
    assert run(tmp_path / "w.duckdb", "SELECT count(*) FROM t") == [(1_000_000,)]
