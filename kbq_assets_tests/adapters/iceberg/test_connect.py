"""An address leads to its catalog: the embedded one, or one from pyiceberg's configuration."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy.engine import make_url

from kbq_assets.adapters.iceberg import connect, open_lake
from kbq_assets.adapters.iceberg import lake as lake_module
from kbq_assets.adapters.iceberg.connect import configured, embedded
from kbq_assets.adapters.iceberg.lake import IcebergLake, lake_errors
from kbq_assets.core.config.locations import LakeAddress, parse_warehouse
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.wire.arrow.staged import open_file_uri
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, load_job, records
from kbq_assets_tests.fixtures.variables import Variables


def address(text: str) -> LakeAddress:
    found = parse_warehouse(text)
    assert isinstance(found, LakeAddress)
    return found


def test_a_folder_holds_its_catalog_and_its_tables(tmp_path: Path) -> None:
    folder = tmp_path / "not yet" / "the lake"
    for _ in range(2):
        lake = open_lake(address(f"iceberg:{folder}"), tmp_path, open_file_uri)
        lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    (tmp_path / "a.avro").write_bytes(avro_file(records([0])))
    lake.insert_job(load_job("j-1", (tmp_path / "a.avro").as_uri()))
    assert sorted(path.name for path in folder.iterdir()) == ["catalog.db", "shop"]
    [file] = (folder / "shop" / "orders-v1" / "data").rglob("*.parquet")
    assert file.parent.name == "event_date=2022-01-08"


def test_a_bucket_has_its_catalog_below_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    names = {embedded(address(f"iceberg:gs://bucket/{prefix}"), home)[0] for prefix in ("a", "b", "")}
    assert len(names) == 3  # one file serves several lakes
    _, properties = embedded(address("iceberg:gs://bucket/a"), home)
    assert properties["warehouse"] == "gs://bucket/a"
    assert str(home / "iceberg-catalog.db") in properties["uri"]
    assert home.is_dir()


def test_a_named_catalog_is_that_of_pyicebergs_configuration(tmp_path: Path, variables: Variables) -> None:
    variables["PYICEBERG_CATALOG__PROD__TYPE"] = "sql"
    variables["PYICEBERG_CATALOG__PROD__URI"] = f"sqlite:///{tmp_path}/prod.db"
    variables["PYICEBERG_CATALOG__PROD__WAREHOUSE"] = f"file://{tmp_path}/lake"
    lake = open_lake(address("iceberg:prod"), tmp_path, open_file_uri)
    lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    assert (tmp_path / "prod.db").exists()
    with pytest.raises(ConfigurationError, match="no catalog other") as caught:
        open_lake(address("iceberg:other"), tmp_path, open_file_uri)
    assert "PYICEBERG_CATALOG__OTHER__URI" in caught.value.next_step


def test_files_in_s3_are_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    lake = open_lake(address(f"iceberg:{folder}"), tmp_path, open_file_uri)
    lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    [metadata] = folder.rglob("*.metadata.json")
    metadata.write_text(metadata.read_text().replace(f"file://{folder}/shop", "s3://bucket/shop"))
    with pytest.raises(ConfigurationError, match="s3://, which is not built yet"):
        lake.columns(TABLE)


@pytest.mark.parametrize(("uri", "clients"), [("thrift://host:9083", 3), ("sqlite:///catalog.db", 1)])
def test_hives_client_is_for_one_thread(monkeypatch: pytest.MonkeyPatch, uri: str, clients: int) -> None:
    """Two threads that shared it would read each other's answers."""
    for opens in ("load_catalog", "_open_hive"):
        monkeypatch.setattr(lake_module, opens, lambda name, **properties: object())
    lake = IcebergLake("prod", {"uri": uri})
    with ThreadPoolExecutor(2) as pool:
        together = Barrier(2, timeout=60)

        def opened() -> object:
            together.wait()
            return lake.catalog

        found = [
            lake.catalog,
            *(each.result() for each in [pool.submit(opened) for _ in range(2)]),
            lake.catalog,
        ]
    assert len(set(map(id, found))) == clients
    assert found[0] is found[-1]


class TException(Exception):
    """Like Thrift's, which cannot store a traceback."""

    def __setattr__(self, *args: object) -> None:
        raise TypeError("can't modify immutable instance")


@pytest.mark.parametrize("error", [type("MetaException", (TException,), {})("no such type"), OSError("gone")])
def test_errors_of_the_catalog_are_kbqs(error: Exception) -> None:
    with pytest.raises(Unavailable, match=f"failed in a job: {type(error).__name__}"), lake_errors("a job"):
        raise error


def test_a_defect_stays_one() -> None:
    with pytest.raises(ZeroDivisionError), lake_errors("a job"):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("address", "waits"),
    [
        ("postgresql+psycopg2://me:s%40cret@host/db", {"connect_timeout": "30", "keepalives_idle": "60"}),
        ("postgresql://host/db?connect_timeout=5", {"connect_timeout": "5", "tcp_user_timeout": "120000"}),
        ("postgresql+pg8000://me@host/db", {}),
        ("sqlite:////data/catalog.db", {}),
        ("no address", None),
    ],
)
def test_a_catalog_on_postgres_does_not_wait_forever(
    variables: Variables, address: str, waits: dict[str, str] | None
) -> None:
    variables["PYICEBERG_CATALOG__PROD__URI"] = address
    found = configured("prod")["uri"]
    if not waits:
        assert found == address
        return
    url = make_url(found)
    assert waits.items() <= url.query.items()
    assert url.set(query={}) == make_url(address).set(query={})


@pytest.mark.thorough
def test_a_postgres_that_accepts_and_never_answers_is_given_up(
    tmp_path: Path, variables: Variables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "_LIMITS", {"connect_timeout": "1"})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        variables["PYICEBERG_CATALOG__PROD__TYPE"] = "sql"
        variables["PYICEBERG_CATALOG__PROD__URI"] = (
            f"postgresql+psycopg2://127.0.0.1:{silent.getsockname()[1]}/db"
        )
        lake = open_lake(LakeAddress(catalog="prod"), tmp_path, open_file_uri)
        with pytest.raises(Unavailable, match="timeout"):
            lake.columns(TABLE)
