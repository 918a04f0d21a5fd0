"""A lake whose catalog is a REST server keeps the contracts of warehouse, compaction and replays."""

from __future__ import annotations

import base64
import functools
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kbq_assets.adapters.iceberg import IcebergWarehouse, open_lake, rest
from kbq_assets.adapters.iceberg.replay import LakeReplayTables
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.errors import ConfigurationError, JobAlreadyExists, Unavailable, UnknownOutcome
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
    avro_file,
    load_job,
    records,
)
from kbq_assets_tests.fixtures.variables import Variables

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


def one_row_job(folder: Path) -> LoadJob:
    path = folder / "a.avro"
    path.write_bytes(avro_file(records([0])))
    return load_job("kbq-1a2b-1", path.as_uri())


def test_a_named_catalog_may_be_a_rest_server(
    server: RestCatalogServer, tmp_path: Path, variables: Variables
) -> None:
    for key, value in {"TYPE": "rest", "URI": server.url}.items():
        variables[f"PYICEBERG_CATALOG__PROD__{key}"] = value
    writer, reader = (open_lake(LakeAddress(catalog="prod"), tmp_path, open_file_uri) for _ in range(2))
    writer.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    writer.insert_job(one_row_job(tmp_path))
    assert reader.positions(TABLE, KAFKA) == {0: 1}
    assert reader.tables() == (TABLE,)
    with pytest.raises(JobAlreadyExists):
        reader.insert_job(one_row_job(tmp_path))


#: What docs/iceberg.md says for Google's Lakehouse catalog, with this server's address.
GOOGLE = """
catalog:
  prod:
    type: rest
    uri: {url}
    warehouse: gs://my-bucket
    header.x-goog-user-project: my-project
    auth:
      type: google
      google:
        scopes:
          - https://www.googleapis.com/auth/cloud-platform
"""


@pytest.fixture
def google(server: RestCatalogServer, tmp_path: Path, variables: Variables) -> Path:
    """The server is as Google's: it wants an account's token, the project that pays, and a prefix in paths. Returns the
    file that configures it."""

    def token(form: Mapping[str, list[str]]) -> tuple[int, Any]:
        claims = form["assertion"][0].split(".")[1]
        if not json.loads(base64.urlsafe_b64decode(claims + "==")).get("scope"):
            return 400, {"error": "invalid_scope"}
        return 200, {"access_token": "of-loader", "expires_in": 3600}

    def refuse(path: str, headers: Mapping[str, str]) -> str:
        sent = headers.get("Authorization"), headers.get("x-goog-user-project")
        is_known = (
            path.startswith(f"/v1/{server.prefix}") or path == "/v1/config?warehouse=gs%3A%2F%2Fmy-bucket"
        )
        return "" if sent == ("Bearer of-loader", "my-project") and is_known else f"{path} {sent}"

    server.prefix, server.token, server.refuse = "projects/my-project/catalogs/my-bucket/", token, refuse
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    formats = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    key = {
        "type": "service_account",
        "private_key": made.private_bytes(*formats).decode(),
        "client_email": "loader@my-project.iam.gserviceaccount.com",
        "token_uri": f"{server.url}/token",
    }
    (tmp_path / "key.json").write_text(json.dumps(key))
    variables["GOOGLE_APPLICATION_CREDENTIALS"] = str(tmp_path / "key.json")
    variables["PYICEBERG_HOME"] = str(tmp_path)
    path = tmp_path / ".pyiceberg.yaml"
    path.write_text(GOOGLE.format(url=server.url))
    return path


@pytest.mark.usefixtures("google")
def test_googles_catalog_gets_its_token_project_and_prefix(tmp_path: Path) -> None:
    lake = open_lake(LakeAddress(catalog="prod"), tmp_path, open_file_uri)
    lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    lake.insert_job(one_row_job(tmp_path))
    assert lake.positions(TABLE, KAFKA) == {0: 1}


def test_a_token_that_google_refuses_is_the_configurations(google: Path, tmp_path: Path) -> None:
    google.write_text(google.read_text().partition("      google:")[0])
    lake = open_lake(LakeAddress(catalog="prod"), tmp_path, open_file_uri)
    with pytest.raises(ConfigurationError, match=r"no access token from Google for .*invalid_scope"):
        lake.columns(TABLE)


@pytest.mark.usefixtures("google")
def test_a_token_server_out_of_reach_is_tried_again(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text(json.dumps({**json.loads(key.read_text()), "token_uri": "http://127.0.0.1:1/token"}))
    with pytest.raises(Unavailable, match="no access token"):
        open_lake(LakeAddress(catalog="prod"), tmp_path, open_file_uri).columns(TABLE)


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


def test_a_commit_that_a_proxy_sent_twice_happened_once(server: RestCatalogServer, tmp_path: Path) -> None:
    lake, faults = Lake(tmp_path, warehouse=opened(server.url)), ["twice"] * 4
    acts: list[Callable[[], None]] = [
        lambda: lake.load(1),
        lambda: lake.load(2),
        lake.compact,
        lambda: lake.replace_all(3),
    ]
    server.fault = faults.pop
    for act in acts:
        act()
    assert faults == []
    server.fault = str
    assert lake.offsets() == [3]
    assert len(lake.table.snapshots()) == 4
    for snapshot in lake.table.snapshots():
        assert lake.table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lake = opened(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(Unavailable, match="Timeout"):
            lake.columns(TABLE)


def oauth2(server: RestCatalogServer, **more: Any) -> IcebergWarehouse:
    own = {"client_id": "me", "client_secret": "s3cret", "token_url": f"{server.url}/token", **more}
    properties = {"type": "rest", "uri": server.url, "auth": {"type": "oauth2", "oauth2": own}}
    return IcebergWarehouse("rest", properties, open_uri=open_file_uri)


def test_a_token_of_a_client_serves_many_requests(server: RestCatalogServer) -> None:
    asked: list[Mapping[str, list[str]]] = []

    def token(form: Mapping[str, list[str]]) -> tuple[int, Any]:
        asked.append(form)
        return 200, {"access_token": "of-me", "expires_in": 3600}

    server.token = token
    server.refuse = lambda path, headers: "" if headers.get("Authorization") == "Bearer of-me" else path
    lake = oauth2(server, scope="lake")
    assert lake.columns(TABLE) is None
    before = list(asked)
    assert before[0] == {"grant_type": ["client_credentials"], "scope": ["lake"]}
    assert lake.tables() == ()
    assert asked == before


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((401, {"error": "invalid_client"}), ConfigurationError),
        ((503, {}), Unavailable),
        ((200, []), Unavailable),
        ((200, {"access_token": 5}), Unavailable),
        ((200, {"access_token": "t", "expires_in": "soon"}), Unavailable),
    ],
)
def test_a_token_server_that_gives_no_token_is_reported(
    server: RestCatalogServer, answer: tuple[int, Any], error: type[Exception]
) -> None:
    server.token = lambda form: answer
    with pytest.raises(error, match="token"):
        oauth2(server).columns(TABLE)


def test_a_token_server_that_never_answers_is_given_up(
    server: RestCatalogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lake = oauth2(server, token_url=f"http://127.0.0.1:{silent.getsockname()[1]}/token")
        with pytest.raises(Unavailable, match="Timeout"):
            lake.columns(TABLE)
