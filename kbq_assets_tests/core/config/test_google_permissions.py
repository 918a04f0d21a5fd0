"""Least privilege on Google Cloud: locations, grants, and members as IAM writes them."""

from __future__ import annotations

import pytest

from kbq_assets.core.config.google_permissions import (
    bucket_grant,
    can_load,
    dataset_grant,
    is_regional,
    job_grant,
    member_of,
)
from kbq_assets.core.config.locations import BigQueryProject, Bucket

EMAIL = "loader@p.iam.gserviceaccount.com"
EU = BigQueryProject("my-project", "EU")


@pytest.mark.parametrize(
    ("bucket", "dataset", "loads"),
    [
        ("US", "US", True),
        ("ASIA-NORTHEAST1", "US", True),
        ("EU", "EU", True),
        ("EUROPE-WEST3", "EU", True),
        ("EUR4", "EU", True),
        ("EUROPE-WEST2", "EU", False),
        ("EUROPE-WEST6", "EU", False),
        ("US", "EU", False),
        ("EU", "europe-west3", True),
        ("EU", "europe-west2", False),
        ("US", "us-east4", True),
        ("US", "northamerica-northeast1", False),
        ("EUR4", "europe-west4", True),
        ("EUR4", "europe-west3", False),
        ("NAM4", "us-east1", True),
        ("EUR8", "EU", True),
        ("ASIA1", "EU", False),
        ("EUROPE-WEST3", "europe-west3", True),
        ("EUROPE-WEST1", "europe-west3", False),
        ("US-CENTRAL1", "us-central1", True),
    ],
)
def test_a_dataset_loads_from_buckets_of_its_own_place(bucket: str, dataset: str, loads: bool) -> None:
    assert can_load(bucket, dataset) is loads


def test_a_configurable_dual_region_is_where_its_regions_are() -> None:
    pair = ("EUROPE-WEST1", "EUROPE-WEST3")
    assert can_load("EU", "europe-west3", pair) and can_load("EU", "EU", pair)
    assert not can_load("EU", "europe-west4", pair)
    assert not is_regional("EU", pair)
    assert [is_regional(place) for place in ("EUROPE-WEST3", "EU", "NAM4")] == [True, False, False]


@pytest.mark.parametrize(
    ("identity", "member"),
    [
        (EMAIL, f"serviceAccount:{EMAIL}"),
        ("1-compute@developer.gserviceaccount.com", "serviceAccount:1-compute@developer.gserviceaccount.com"),
        ("me@example.com", "user:me@example.com"),
        ("Application Default Credentials", "MEMBER"),
    ],
)
def test_a_member_is_named_as_iam_names_it(identity: str, member: str) -> None:
    assert member_of(identity) == member


def test_grants_are_commands_that_give_the_role() -> None:
    member = member_of(EMAIL)
    assert bucket_grant(Bucket("b", "kbq"), "storage.objects.create", member).command == (
        f"gcloud storage buckets add-iam-policy-binding gs://b --member={member} --role=roles/storage.objectUser"
        " --condition=None"
    )
    assert job_grant(EU, member).command == (
        f"gcloud projects add-iam-policy-binding my-project --member={member} --role=roles/bigquery.jobUser"
        " --condition=None"
    )
    assert dataset_grant(EU, "shop", member).command == (
        "bq query --project_id=my-project --location=EU --use_legacy_sql=false"
        f" 'GRANT `roles/bigquery.dataEditor` ON SCHEMA `my-project`.shop TO \"{member}\"'"
    )
