"""`kbq doctor` checks every one of several warehouses, each with the datasets of its own topics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.topics.source_list import parse_source_list
from kbq_assets.extras.doctor.places import datasets_of
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.cli.test_warehouses import BOTH, TwoWarehouses
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform
from kbq_assets_tests.google.servers import PROJECT, BigQueryServer, GcsServer


def checks(run: Shell, *args: str) -> dict[str, tuple[str, str]]:
    """Outcome and finding of each check."""
    found: list[dict[str, Any]] = json.loads(run(*args, "--json").stdout)
    return {check["name"]: (check["outcome"], check["found"]) for check in found}


def test_a_second_warehouse_that_cannot_be_read_is_found(tmp_path: Path) -> None:
    (tmp_path / "lake.duckdb").mkdir()
    lake = f"duckdb:{tmp_path / 'lake.duckdb'}"
    run = Shell(TwoWarehouses(tmp_path, f"main=duckdb:{tmp_path / 'main.duckdb'},lake={lake}"))
    found = checks(run, "doctor")
    assert (found["main warehouse"][0], found["lake warehouse"][0]) == ("ok", "fail")
    assert "lake.duckdb" in found["lake warehouse"][1]
    assert run("doctor").exit_code == 1
    assert "lake warehouse" not in checks(run, "--warehouse", "main", "doctor")
    assert "main warehouse" not in checks(run, "--warehouse", "lake", "doctor")


def test_a_single_warehouse_has_no_name_in_front(tmp_path: Path) -> None:
    run = Shell(TwoWarehouses(tmp_path, f"duckdb:{tmp_path / 'main.duckdb'}", BOTH.partition(" ware")[0]))
    assert checks(run, "doctor")["warehouse"][0] == "ok"


def test_each_warehouse_is_asked_about_the_datasets_of_its_own_topics() -> None:
    entries = parse_source_list(
        "a dataset=one\nb dataset=two warehouses=lake\nc dataset={topic} warehouses=lake\nd dataset=one",
        "topics",
    )
    assert (datasets_of(entries, ""), datasets_of(entries, "lake")) == (["one"], ["two"])


@pytest.mark.google
def test_each_project_is_checked_with_its_location_and_permissions(
    gcs_server: GcsServer, bigquery_server: BigQueryServer, tmp_path: Path
) -> None:
    mine, theirs = bigquery_server.new_dataset(), "kbq_no_such_dataset"
    url = f"bigquery://{PROJECT}?location="
    world = FakePlatform(
        tmp_path,
        sources=f"{TOPIC} dataset={mine} warehouses=us,eu\nother dataset={theirs} warehouses=eu\n",
        environ={
            "KBQ_STAGING": f"gs://{gcs_server.new_bucket()}/kbq",
            "KBQ_GCS_ENDPOINT": gcs_server.endpoint,
            "KBQ_WAREHOUSE": f"us={url}US,eu={url}EU",
            "KBQ_BIGQUERY_ENDPOINT": bigquery_server.endpoint,
            "KBQ_EXTRACT_CREDENTIALS": "anonymous",
            "KBQ_LOAD_CREDENTIALS": "anonymous",
        },
    )
    run = Shell(world)
    found = checks(run, "doctor", "--gcp")
    assert found["us load jobs"][0] == found["eu load jobs"][0] == "ok"
    assert found[f"us dataset {mine}"] == ("ok", "tables can be created, read, altered, loaded and dropped")
    assert (f"us dataset {theirs}" in found, found[f"eu dataset {theirs}"][0]) == (False, "warn")
    located = [c for c in json.loads(run("doctor", "--gcp", "--json").stdout) if c["outcome"] == "fail"]
    assert [(c["name"], c["found"]) for c in located] == [
        (f"eu dataset {mine}", "is in US, but jobs would run in EU")
    ]
    bigquery_server.denied.add("bigquery.tables.create")
    try:
        denied = [
            c for c in json.loads(run("doctor", "--gcp", "--json").stdout) if "no bigquery" in c["found"]
        ]
    finally:
        bigquery_server.denied.clear()
    assert [c["name"] for c in denied] == [f"us dataset {mine}", f"eu dataset {mine}"]
