"""A lake whose catalog is a REST server keeps the contracts of warehouse, compaction and replays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbq_assets.adapters.iceberg import IcebergWarehouse, open_lake
from kbq_assets.adapters.iceberg.replay import LakeReplayTables
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.errors import JobAlreadyExists, Unavailable, UnknownOutcome
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.ports.replay import ReplayTables
from kbq_assets.ports.warehouse import KafkaRange, LoadJob, Warehouse
from kbq_assets.wire.arrow.staged import open_file_uri
from kbq_assets_tests.adapters.iceberg.rest_server import RestCatalogServer, rest_catalog
from kbq_assets_tests.adapters.iceberg.test_compaction import Lake
from kbq_assets_tests.contracts.compaction import CompactionContract
from kbq_assets_tests.contracts.erasure import no_tasks
from kbq_assets_tests.contracts.replay import ReplayTablesContract
from kbq_assets_tests.contracts.warehouse import (
    SCHEMA,
    TABLE,
    Opener,
    SharedWarehouseContract,
    Stage,
    avro_file,
    load_job,
    records,
)

KAFKA = KafkaRange("t", 0, 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestCatalogServer]:
    with rest_catalog(tmp_path / "rest") as found:
        yield found


@pytest.fixture
def opener(server: RestCatalogServer) -> Opener:
    """Opens the server's lake."""
    return functools.partial(opened, server.url)


def opened(url: str) -> IcebergWarehouse:
    return IcebergWarehouse("rest", {"type": "rest", "uri": url}, open_uri=open_file_uri)


@pytest.mark.slow
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


@pytest.mark.slow
class TestCompaction(CompactionContract):
    @pytest.fixture
    def lake(self, tmp_path: Path, opener: Callable[[], IcebergWarehouse]) -> Lake:
        return Lake(tmp_path, warehouse=opener())


@pytest.mark.slow
class TestReplayTables(ReplayTablesContract):
    @pytest.fixture
    def warehouse(self, opener: Opener) -> Warehouse:
        return opener()

    @pytest.fixture
    def replays(self, server: RestCatalogServer) -> ReplayTables:
        return LakeReplayTables(opened(server.url).lake, no_tasks)

    @pytest.fixture
    def stage(self, tmp_path: Path) -> Stage:
        def write(name: str, data: bytes) -> str:
            (tmp_path / name).write_bytes(data)
            return (tmp_path / name).as_uri()

        return write


def one_row_job(folder: Path) -> LoadJob:
    path = folder / "a.avro"
    path.write_bytes(avro_file(records([0])))
    return load_job("kbq-1a2b-1", path.as_uri())


def test_a_named_catalog_may_be_a_rest_server(
    server: RestCatalogServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {"TYPE": "rest", "URI": server.url}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{key}", value)
    writer, reader = (open_lake(LakeAddress(catalog="prod"), tmp_path, open_file_uri) for _ in range(2))
    writer.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    writer.insert_job(one_row_job(tmp_path))
    assert reader.positions(TABLE, KAFKA) == {0: 1}
    assert reader.tables() == (TABLE,)
    with pytest.raises(JobAlreadyExists):
        reader.insert_job(one_row_job(tmp_path))


@pytest.mark.parametrize("fault", ["lost before", "lost after"])
def test_a_commit_without_an_answer_is_read_back(
    server: RestCatalogServer, opener: Opener, tmp_path: Path, fault: str
) -> None:
    lake, job = opener(), one_row_job(tmp_path)
    lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    faults = iter([fault])
    server.fault = lambda: next(faults, "")
    with pytest.raises(UnknownOutcome):
        lake.insert_job(job)
    status = lake.get_job(job.job_id, job.project, job.location, TABLE)
    assert (status is None) == (fault == "lost before")
    if status is None:
        lake.insert_job(job)
    assert opened(server.url).positions(TABLE, KAFKA) == {0: 1}


def test_a_server_that_is_gone_fails_the_run_and_not_the_data(tmp_path: Path) -> None:
    with rest_catalog(tmp_path / "rest") as server:
        lake = opened(server.url)
        lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    with pytest.raises(Unavailable):
        lake.insert_job(one_row_job(tmp_path))
