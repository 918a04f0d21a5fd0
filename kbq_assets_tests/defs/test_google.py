"""On Google Cloud, users' assets get dagster-gcp's resources, configured like the platform's own clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import requests
from dagster_gcp import BigQueryResource, GCSResource
from google.auth.credentials import AnonymousCredentials
from google.cloud.bigquery import Client
from google.cloud.storage import Client as StorageClient
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.definitions import Adapters, Parts
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets.defs.google import PlatformGcs, google_resources
from kbq_assets.defs.jobs import LOAD_TAG
from kbq_assets.defs.links import table_links
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets_tests.adapters.bigquery.canned import canned_bigquery, loaded, table_resource
from kbq_assets_tests.defs.test_sensors import evaluate
from kbq_assets_tests.defs.world import PlatformWorld
from kbq_assets_tests.fixtures.variables import Variables
from kbq_assets_tests.google.faults import Fault

GOOGLE = {
    "KBQ_STAGING": "gs://kbq-bucket/staging",
    "KBQ_WAREHOUSE": "bigquery://my-project?location=EU",
    "KBQ_LOAD_CREDENTIALS": "anonymous",
    "KBQ_GCS_ENDPOINT": "http://127.0.0.1:4443",
    "KBQ_BIGQUERY_ENDPOINT": "http://127.0.0.1:9050",
}


def test_a_local_platform_has_no_google_resources(tmp_path: Path) -> None:
    resources = PlatformWorld(tmp_path).definitions.resources or {}
    assert {"bigquery", "gcs"} & resources.keys() == set()


def test_a_bucket_without_bigquery_has_its_own_resource_alone(tmp_path: Path) -> None:
    world = PlatformWorld(tmp_path, KBQ_STAGING=GOOGLE["KBQ_STAGING"])
    resources = world.definitions.resources or {}
    assert {"bigquery", "gcs"} & resources.keys() == {"gcs"}


def test_users_assets_get_clients_of_the_platforms_project_and_endpoint(tmp_path: Path) -> None:
    seen: dict[str, str | None] = {}

    @dg.asset
    def downstream(bigquery: dg.ResourceParam[BigQueryResource], gcs: dg.ResourceParam[GCSResource]) -> None:
        with bigquery.get_client() as client:
            seen.update(
                project=client.project, location=client.location, bigquery=client._connection.API_BASE_URL
            )
        storage = gcs.get_client()
        seen.update(gcs=storage._connection.API_BASE_URL, gcs_project=storage.project)

    resources = PlatformWorld(tmp_path, 2, 500, **GOOGLE).definitions.resources or {}
    defs = dg.Definitions(assets=[downstream], resources=resources)
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process().success
    assert seen == {
        "project": "my-project",
        "location": "EU",
        "bigquery": GOOGLE["KBQ_BIGQUERY_ENDPOINT"],
        "gcs": GOOGLE["KBQ_GCS_ENDPOINT"],
        "gcs_project": "my-project",
    }


class UsersBigQuery(BigQueryResource):
    """A client of the user's own making, which repeats requests."""

    address: str = ""

    @contextmanager
    def get_client(self) -> Iterator[Client]:
        client = Client(self.project, AnonymousCredentials(), client_options={"api_endpoint": self.address})
        for scheme in ("http://", "https://"):
            client._http.mount(scheme, HTTPAdapter(max_retries=Retry(3, allowed_methods=None)))
        yield client


class Asked(requests.Session):
    """A session that notes its requests and answers none."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **options: Any) -> Any:
        self.urls.append(str(url))
        raise requests.ConnectionError("nobody is there")


ASKED = Asked()


class UsersGcs(GCSResource):
    """Another client of the user's own making."""

    def get_client(self) -> Any:
        return StorageClient("users", AnonymousCredentials(), _http=ASKED)


def test_jobs_load_by_the_bigquery_resource_that_a_user_put_and_send_each_insert_once(
    tmp_path: Path, instance: dg.DagsterInstance, variables: Variables
) -> None:
    world = PlatformWorld(tmp_path, 2, 500, **GOOGLE)
    del world.parts.adapters.warehouse  # the real one, not the fake
    with canned_bigquery() as server:
        variables["ADDRESS_OF_BIGQUERY"] = server.endpoint
        users = UsersBigQuery(project="my-project", address=dg.EnvVar("ADDRESS_OF_BIGQUERY"))
        engine = dg.ResourceDefinition.hardcoded_resource(world.engine)
        world.definitions = world.parts.definitions(resources={ENGINE: engine, "bigquery": users})
        world.produce(3)
        assert world.run("extract_job", instance).success
        server.reply("tables.get", table_resource({"name": "x", "type": "INTEGER"}))
        server.reply("tables.patch", table_resource({"name": "x", "type": "INTEGER"}))
        server.reply("jobs.insert", loaded("kbq-1"))
        server.refuse("jobs.get", 404, "notFound")
        server.reply("jobs.get", loaded("kbq-1"))  # with other files, so the loader gives up
        server.faults.add(Fault("jobs.insert", "drop_reply"))
        world.run("load_job", instance)
        assert len(server.sent("jobs.insert")) == 1
        assert world.warehouse.jobs == {}


def test_sensors_and_stores_ask_by_the_gcs_resource_that_a_user_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbq_assets.adapters.gcs.calls.wait", lambda seconds: None)
    parts = Parts(Adapters(parse_settings({**GOOGLE, "KBQ_HOME": str(tmp_path)})))
    opened = parts.with_resources({"gcs": UsersGcs(), "bigquery": UsersBigQuery()})
    for store in (opened.deployment.store, opened.deployment.load_store):
        ASKED.urls.clear()
        with pytest.raises(Unavailable):
            store.get("commits/_topics.json")
        assert ASKED.urls
        assert all("kbq-bucket" in url for url in ASKED.urls)


def test_extraction_has_a_gcs_resource_of_its_own_if_its_credentials_differ() -> None:
    resources = google_resources(parse_settings({**GOOGLE, "KBQ_EXTRACT_CREDENTIALS": "file:/extract.json"}))
    assert {key: r.credentials for key, r in resources.items() if isinstance(r, PlatformGcs)} == {
        "gcs": "anonymous",
        "gcs_extract": "file:/extract.json",
    }
    same = google_resources(parse_settings({**GOOGLE, "KBQ_EXTRACT_CREDENTIALS": "anonymous"}))
    assert sorted(same) == ["bigquery", "gcs"]


def test_definitions_on_google_cloud_load_and_keep_secrets_out(tmp_path: Path) -> None:
    definitions = PlatformWorld(tmp_path, 2, 500, **GOOGLE).definitions
    dg.Definitions.validate_loadable(definitions)
    table = definitions.resolve_asset_graph().get(dg.AssetKey(["nyc", "flights"]))
    assert table.kinds == {"bigquery", "table"}


def links_of(environ: Mapping[str, str]) -> list[str]:
    """Where the assets, and the materialisation of a table, lead to."""
    settings = parse_settings(environ)
    specs = (AssetTranslator().staged_files_spec(settings), AssetTranslator().tables_spec(settings))
    found = [spec.metadata.get("console") for spec in specs]
    found.append(table_links(settings, TableReference("shop", "orders")).get("console"))
    return [link.value for link in found if isinstance(link, dg.UrlMetadataValue) and link.value]


@pytest.mark.parametrize("endpoint", ["", "https://storage-kbq.p.googleapis.com"])
def test_assets_and_tables_lead_to_their_pages_in_the_console(endpoint: str) -> None:
    places = {name: GOOGLE[name] for name in ("KBQ_STAGING", "KBQ_WAREHOUSE")}
    assert links_of({**places, "KBQ_GCS_ENDPOINT": endpoint, "KBQ_BIGQUERY_ENDPOINT": endpoint}) == [
        "https://console.cloud.google.com/storage/browser/kbq-bucket/staging",
        "https://console.cloud.google.com/bigquery?project=my-project",
        "https://console.cloud.google.com/bigquery?project=my-project&p=my-project&d=shop&t=orders&page=table",
    ]


@pytest.mark.parametrize("environ", [{}, GOOGLE], ids=["local", "local servers"])
def test_what_has_no_page_in_the_console_leads_nowhere(environ: dict[str, str]) -> None:
    assert links_of(environ) == []


@pytest.mark.parametrize(
    ("environ", "seconds", "cron"),
    [
        ({}, 120, "*/9 * * * *"),
        (GOOGLE, 900, "*/9 * * * *"),
        ({"KBQ_CLEAN_MINUTES": "30"}, 120, "*/30 * * * *"),
    ],
)
def test_dagster_loads_as_often_as_the_warehouse_wants(
    tmp_path: Path, instance: dg.DagsterInstance, environ: dict[str, str], seconds: int, cron: str
) -> None:
    world = PlatformWorld(tmp_path, 2, 500, **environ)
    definitions = world.definitions
    staging = world.parts.deployment.settings.staging_url
    instance.add_run(dg.DagsterRun(job_name="load_job", tags={LOAD_TAG: staging}))
    world.produce(1)
    world.parts.extractor.extract(world.engine)
    skipped = evaluate(world, "done_file_sensor", instance).skip_reason
    assert isinstance(skipped, dg.SkipReason)
    assert f"one starts every {seconds} s" in (skipped.skip_message or "")
    schedule = definitions.resolve_schedule_def("clean_schedule")
    assert schedule.cron_schedule == cron
