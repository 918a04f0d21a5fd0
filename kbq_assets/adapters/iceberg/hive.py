"""A catalog in a Hive metastore that ends every request in time. It needs the package thrift, an extra of pyiceberg."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog.hive import (  # type: ignore[attr-defined]
    HiveCatalog,
    TSocket,
    TTransport,
    _HiveClient,
)

from kbq_assets.adapters.iceberg import rest


class TimedHiveCatalog(HiveCatalog):
    """pyiceberg's Hive catalog, without requests that may wait forever (ADR 17).

    If the metastore does not answer a commit, its outcome is unknown. The library then deletes nothing, and KBQ looks
    the job up.
    """

    @staticmethod
    def _create_hive_client(properties: dict[str, str]) -> _HiveClient:
        found = HiveCatalog._create_hive_client(properties)
        ugi = ":".join(found._ugi) if found._ugi else None
        return _TimedClient(found._uri, ugi, found._kerberos_auth, found._kerberos_service_name)


class _TimedClient(_HiveClient):
    def _init_thrift_transport(self) -> Any:
        # The library calls this for each connection, and sets no limit.
        host = urlsplit(self._uri).hostname
        socket = TSocket.TSocket(host, urlsplit(self._uri).port)
        socket.setTimeout(1000 * rest.ANSWER_SECONDS)
        if self._kerberos_auth:
            return TTransport.TSaslClientTransport(socket, host=host, service=self._kerberos_service_name)
        return TTransport.TBufferedTransport(socket)
