"""Ctrl-C reaches the command whatever DuckDB makes of it, and condemns no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from kbq_assets.adapters.duckdb.engines import is_interrupt
from kbq_assets.adapters.duckdb.warehouse import DuckDbWarehouse
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.wire.arrow.staged import StagedBatch, StagedTables
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, load_job, records


@pytest.fixture
def warehouse(tmp_path: Path) -> DuckDbWarehouse:
    found = DuckDbWarehouse(tmp_path / "w.duckdb")
    found.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    return found


class Interrupted:
    """A table that DuckDB asks for its rows while the user presses Ctrl-C."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise KeyboardInterrupt


def test_a_load_that_is_interrupted_was_never_inserted(
    warehouse: DuckDbWarehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f.avro").write_bytes(avro_file(records(range(3))))
    job = load_job("j", (tmp_path / "f.avro").as_uri())
    table: Any = Interrupted()
    with monkeypatch.context() as patch:
        patch.setattr(StagedTables, "read", lambda *_: iter([StagedBatch(table, {"f.avro": 3})]))
        with pytest.raises(KeyboardInterrupt):
            warehouse.insert_job(job)
    assert warehouse.get_job("j", "local", "local") is None
    warehouse.insert_job(job)
    status = warehouse.get_job("j", "local", "local")
    assert status is not None and (status.error, status.output_rows) == (None, 3)


def test_a_query_that_is_interrupted_interrupts_the_command(warehouse: DuckDbWarehouse) -> None:
    with pytest.raises(KeyboardInterrupt), warehouse.connect_readonly() as connection:

        def interrupts(number: int) -> int:
            connection.interrupt()
            return number

        connection.create_function("interrupts", interrupts)
        connection.execute("SELECT sum(interrupts(i)) FROM range(1000000) rows(i)").fetchall()


def test_what_ctrl_c_makes_of_a_query_is_an_interrupt() -> None:
    assert is_interrupt(RuntimeError("Query interrupted"))
    assert not is_interrupt(RuntimeError("Query interrupted by its author"))


@pytest.mark.parametrize(
    "query", ["SELECT 'KeyboardInterrupt'::INTEGER", "SELECT error('Query interrupted by KeyboardInterrupt')"]
)
def test_what_records_say_is_no_interrupt(query: str) -> None:
    with pytest.raises(duckdb.Error) as raised:
        duckdb.connect().execute(query)
    assert "KeyboardInterrupt" in str(raised.value) and not is_interrupt(raised.value)
