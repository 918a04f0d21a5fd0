"""A lake whose catalog is SQL on Postgres keeps the contracts of warehouse and compaction."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import sqlalchemy

from kbq_assets.adapters.iceberg import IcebergWarehouse, open_lake
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.ports.warehouse import KafkaRange, LoadJob, Warehouse
from kbq_assets.wire.arrow.staged import open_file_uri
from kbq_assets_tests.adapters.iceberg.test_compaction import Lake
from kbq_assets_tests.contracts.compaction import CompactionContract
from kbq_assets_tests.contracts.warehouse import (
    SCHEMA,
    TABLE,
    Opener,
    SharedWarehouseContract,
    avro_file,
    load_job,
    records,
)
from kbq_assets_tests.defs.instance.postgres import postgres, query
from kbq_assets_tests.fixtures.variables import Variables

pytestmark = pytest.mark.slow

KAFKA = KafkaRange("t", 0, 0)
#: Catalogs share a database: their names distinguish their tables.
NAMES = (f"lake{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a running Postgres."""
    with postgres() as url:
        yield url.replace("postgresql:", "postgresql+psycopg2:")


@pytest.fixture
def opener(server: str, tmp_path: Path) -> Opener:
    """Opens a lake of the test's own."""
    properties = {"type": "sql", "uri": server, "warehouse": f"file://{tmp_path}/lake"}
    return functools.partial(opened, next(NAMES), properties)


def opened(name: str, properties: Mapping[str, str]) -> IcebergWarehouse:
    return IcebergWarehouse(name, properties, open_uri=open_file_uri)


class TestWarehouse(SharedWarehouseContract):
    @pytest.fixture
    def warehouse(self, opener: Opener) -> Warehouse:
        return opener()

    @pytest.fixture
    def opener(self, opener: Opener) -> Opener:
        self.opened = opener
        return opener

    def reopened(self, warehouse: Warehouse) -> Warehouse:
        return self.opened()


class TestCompaction(CompactionContract):
    @pytest.fixture
    def lake(self, tmp_path: Path, opener: Callable[[], IcebergWarehouse]) -> Lake:
        return Lake(tmp_path, warehouse=opener())


def test_a_named_catalog_on_postgres_is_the_same_for_every_process(
    server: str, tmp_path: Path, variables: Variables
) -> None:
    name = next(NAMES)
    for key, value in {"TYPE": "sql", "URI": server, "WAREHOUSE": f"file://{tmp_path}/lake"}.items():
        variables[f"PYICEBERG_CATALOG__{name.upper()}__{key}"] = value
    writer, reader = (open_lake(LakeAddress(catalog=name), tmp_path, open_file_uri) for _ in range(2))
    writer.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    writer.insert_job(one_row_job(tmp_path))
    assert reader.positions(TABLE, KAFKA) == {0: 1}
    assert query(server, f"SELECT table_name FROM iceberg_tables WHERE catalog_name = '{name}'") == [
        (TABLE.table,)
    ]


def test_a_connection_that_postgres_closed_costs_one_attempt(
    server: str, opener: Opener, tmp_path: Path
) -> None:
    lake = opener()
    lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    query(server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    with pytest.raises(Unavailable):
        lake.insert_job(one_row_job(tmp_path))
    lake.insert_job(one_row_job(tmp_path))
    assert lake.positions(TABLE, KAFKA) == {0: 1}


def test_a_refused_login_shows_no_password(server: str, tmp_path: Path) -> None:
    url = sqlalchemy.make_url(server).set(password="of another server")
    properties = {"type": "sql", "uri": url.render_as_string(False), "warehouse": f"file://{tmp_path}/lake"}
    with pytest.raises(Unavailable, match="password authentication failed") as caught:
        opened(next(NAMES), properties).columns(TABLE)
    assert "of another" not in str(caught.value)


def one_row_job(folder: Path) -> LoadJob:
    path = folder / "a.avro"
    path.write_bytes(avro_file(records([0])))
    return load_job("kbq-1a2b-1", path.as_uri())
