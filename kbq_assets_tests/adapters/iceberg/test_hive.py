"""A Hive metastore that does not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from pyiceberg.catalog import Catalog

from kbq_assets.adapters.iceberg import rest
from kbq_assets.adapters.iceberg.warehouse import IcebergWarehouse
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.wire.arrow.staged import open_file_uri

TABLE = TableReference("shop", "orders")


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"thrift://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("kind", [{}, {"type": "hive"}, {"type": "HIVE"}])
def test_a_silent_metastore_ends_in_time(
    silent: str, kind: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("thrift")  # an extra of pyiceberg
    monkeypatch.setattr(rest, "ANSWER_SECONDS", 0.2)
    warehouse = IcebergWarehouse("prod", {"uri": silent, **kind}, open_uri=open_file_uri)
    for _ in range(2):  # the library opens another socket for each request
        with pytest.raises(Unavailable, match=r"the Iceberg warehouse failed in .*(timed out|timeout)"):
            warehouse.columns(TABLE)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **properties: object) -> Catalog:
        raise ModuleNotFoundError("No module named 'thrift'")

    monkeypatch.setattr("kbq_assets.adapters.iceberg.lake._open_hive", missing)
    warehouse = IcebergWarehouse("prod", {"uri": "thrift://127.0.0.1:9"}, open_uri=open_file_uri)
    with pytest.raises(ConfigurationError, match=r"needs a package: .*thrift"):
        warehouse.columns(TABLE)
