"""A small REST catalog (https://iceberg.apache.org/rest-catalog-spec/) in this process, over a SQL one.

It has what KBQ calls. Clients speak to it by pyiceberg's REST catalog, so requests and answers cross a socket.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg import exceptions
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableRequest, Table

from kbq_assets_tests.fakes.serving import QuietHandler, serving

_STATUS: Mapping[type[Exception], int] = {
    exceptions.NoSuchTableError: 404,
    exceptions.NoSuchNamespaceError: 404,
    exceptions.TableAlreadyExistsError: 409,
    exceptions.NamespaceAlreadyExistsError: 409,
    exceptions.CommitFailedException: 409,
}


class RestCatalogServer:
    """Answers requests. ``fault`` gets each commit before it is answered, done or not: "lost before" and "lost after"
    answer 500 without, and with, its effect; "twice" answers the second of two equal requests. The server's settings
    tell clients to add ``prefix`` to paths. ``refuse`` gets a request's path and headers, and says why it is refused,
    "" if it is not; ``token`` the form of who asks for an access token."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        uri, warehouse = f"sqlite:///{folder}/catalog.db?timeout=60", f"file://{folder}/lake"
        self.catalog = SqlCatalog("rest", uri=uri, warehouse=warehouse)
        self.fault: Callable[[], str] = str
        self.refuse: Callable[[str, Mapping[str, str]], str] = lambda path, headers: ""
        self.token: Callable[[Mapping[str, list[str]]], tuple[int, Any]] = lambda form: (404, {})
        self.prefix = ""
        self.url = ""

    def answer(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        """Status and document."""
        if path == "/token":
            return self.token(parse_qs(body))
        short = urlsplit(path).path.removeprefix("/v1/").removeprefix(self.prefix)
        parts = [unquote(part) for part in short.split("/")]
        if why := self.refuse(path, headers):
            return 403, _error(exceptions.ForbiddenError(why), 403)
        try:
            if method == "DELETE":
                return 200, self.catalog.drop_table((parts[1], parts[3]))
            return 200, self._read(parts) if method == "GET" else self._write(parts, body)
        except tuple(_STATUS) as error:
            return _STATUS[type(error)], _error(error, _STATUS[type(error)])

    def _read(self, parts: list[str]) -> Any:
        match parts:
            case ["config"]:
                return {
                    "defaults": {},
                    "overrides": {"prefix": self.prefix.rstrip("/")} if self.prefix else {},
                }
            case ["namespaces"]:
                return {"namespaces": self.catalog.list_namespaces()}
            case ["namespaces", name]:
                return {"namespace": [name], "properties": self.catalog.load_namespace_properties((name,))}
            case ["namespaces", name, "tables"]:
                found = self.catalog.list_tables((name,))
                return {"identifiers": [{"namespace": [name], "name": table} for _, table in found]}
            case ["namespaces", name, "tables", table]:
                return _shown(self.catalog.load_table((name, table)))
        raise exceptions.NoSuchTableError(f"GET {parts} is not known")

    def _write(self, parts: list[str], body: Any) -> Any:
        match parts:
            case ["namespaces"]:
                self.catalog.create_namespace(tuple(body["namespace"]), body["properties"])
                return body
            case ["namespaces", name, "properties"]:
                self.catalog.update_namespace_properties((name,), set(body["removals"]), body["updates"])
                return {"removed": body["removals"], "updated": list(body["updates"]), "missing": []}
            case ["namespaces", name, "tables"]:
                return _shown(self._create(name, body))
            case ["namespaces", name, "tables", table]:
                return self._commit((name, table), body)
        raise exceptions.NoSuchTableError(f"POST {parts} is not known")

    def _create(self, name: str, body: Any) -> Table:
        wanted = CreateTableRequest.model_validate({"location": None, **body})
        assert wanted.partition_spec is not None
        assert wanted.write_order is not None
        return self.catalog.create_table(
            (name, wanted.name),
            wanted.table_schema,
            partition_spec=wanted.partition_spec,
            sort_order=wanted.write_order,
            properties=wanted.properties,
        )

    def _commit(self, identifier: tuple[str, str], body: Any) -> Any:
        wanted = CommitTableRequest.model_validate(body)
        fault = self.fault()
        for _ in range({"lost before": 0, "twice": 2}.get(fault, 1)):
            table = self.catalog.load_table(identifier)
            self.catalog.commit_table(table, wanted.requirements, wanted.updates)
        if fault.startswith("lost"):
            raise ConnectionError
        return _shown(self.catalog.load_table(identifier))


def _shown(table: Table) -> Any:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }


def _error(error: Exception, code: int) -> Any:
    return {"error": {"message": str(error), "type": type(error).__name__, "code": code}}


@contextmanager
def rest_catalog(folder: Path) -> Iterator[RestCatalogServer]:
    """A server on a free port."""
    found = RestCatalogServer(folder)

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_DELETE(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length).decode()
            self._answer(body if self.path == "/token" else json.loads(body))

        def _answer(self, body: Any) -> None:
            try:
                status, document = found.answer(self.command, self.path, body, dict(self.headers))
            except Exception as error:  # an answer as any other, so that the client sees a failing server
                status, document = 500, _error(error, 500)
            self.respond(status, document)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        yield found
