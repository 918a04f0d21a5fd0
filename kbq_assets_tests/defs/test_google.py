"""On Google Cloud, users' assets get dagster-gcp's resources, set up like the platform's own clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import pytest
from dagster_gcp import BigQueryResource, GCSResource

from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.defs.jobs import LOAD_TAG
from kbq_assets.defs.links import table_links
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets_tests.defs.test_sensors import evaluate
from kbq_assets_tests.defs.world import PlatformWorld

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


def test_definitions_on_google_cloud_load_and_keep_secrets_out(tmp_path: Path) -> None:
    definitions = PlatformWorld(tmp_path, 2, 500, **GOOGLE).definitions
    dg.Definitions.validate_loadable(definitions)
    tables = definitions.resolve_asset_graph().get(dg.AssetKey("warehouse_tables"))
    assert tables.kinds == {"bigquery"}


def links_of(environ: Mapping[str, str]) -> list[str]:
    """Where the assets, and the materialisation of a table, lead to."""
    settings = parse_settings(environ)
    specs = (AssetTranslator().staged_spec(settings, []), AssetTranslator().tables_spec(settings))
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
    instance.add_run(dg.DagsterRun(job_name="load_job", tags={LOAD_TAG: "1"}))
    world.produce(1)
    world.parts.extractor.extract(world.engine)
    skipped = evaluate(world, "done_file_sensor", instance).skip_reason
    assert isinstance(skipped, dg.SkipReason)
    assert f"one starts every {seconds} s" in (skipped.skip_message or "")
    schedule = definitions.resolve_schedule_def("clean_schedule")
    assert schedule.cron_schedule == cron
