"""`kbq doctor --gcp` names what is missing, with the role that includes it and the command that grants it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from kbq_assets.adapters.gcs import BucketReport
from kbq_assets.core.config.google_permissions import (
    BUCKET_PERMISSIONS,
    CREATES_IN,
    DELETES_IN,
    SET_CATEGORY,
    TABLE_PERMISSIONS,
)
from kbq_assets.core.config.locations import BigQueryProject, Bucket
from kbq_assets.core.config.roles import Role
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import ConfigurationError, KbqError, NotFound, Refused, Unavailable
from kbq_assets.extras.doctor.check import Check, Outcome
from kbq_assets.extras.doctor.google import (
    examine_bucket,
    examine_clock,
    examine_google,
    examine_safety,
    examine_warehouse,
)
from kbq_assets.extras.doctor.google_questions import DatasetFacts
from kbq_assets_tests.cli.conftest import Shell

Answer = TypeVar("Answer")
PLACE = Bucket("kbq-bucket", "staging")
EU = BigQueryProject("my-project", "EU")
SAFE = BucketReport((), ())
EMAIL = "loader@my-project.iam.gserviceaccount.com"


@dataclass
class FakeBucket:
    """What an identity may do in a bucket."""

    denied: frozenset[str] = frozenset()
    #: What conditions allow all the same, in folders.
    allowed_in: Mapping[str, Collection[str]] = field(default_factory=dict)
    where: str | KbqError = "EU"
    report: BucketReport | KbqError = SAFE
    regions: tuple[str, ...] = ()
    identity: str = EMAIL

    def granted(self, wanted: Collection[str]) -> frozenset[str]:
        return frozenset(wanted) - self.denied

    def may_in(self, folder: str, permission: str) -> bool:
        return folder in self.allowed_in.get(permission, ())

    def location(self) -> tuple[str, tuple[str, ...]]:
        return answer(self.where), self.regions

    def safety(self) -> BucketReport:
        return answer(self.report)


@dataclass
class FakeBigQuery:
    """What an identity may do in BigQuery."""

    who: str | KbqError = EMAIL
    where: str | KbqError = "EU"
    lists: bool = True
    tables: frozenset[str] | KbqError = frozenset(TABLE_PERMISSIONS)
    expiry_days: float = 0

    def job_identity(self) -> str:
        return answer(self.who)

    def dataset(self, name: str) -> DatasetFacts:
        return DatasetFacts(answer(self.where), self.expiry_days)

    def may_list(self, dataset: str) -> bool:
        return self.lists

    def table_permissions(self, dataset: str) -> frozenset[str]:
        return answer(self.tables)


def answer(prepared: Answer | KbqError) -> Answer:
    if isinstance(prepared, KbqError):
        raise prepared
    return prepared


def bucket_checks(side: Role, bucket: FakeBucket) -> list[Check]:
    return list(examine_bucket(side, PLACE, lambda: bucket))


def warehouse_checks(bigquery: FakeBigQuery, bucket: FakeBucket | None = None) -> list[Check]:
    return list(examine_warehouse(EU, ["shop"], lambda: bucket or FakeBucket(), lambda: bigquery))


def outcomes(checks: Collection[Check]) -> set[Outcome]:
    return {check.outcome for check in checks}


@pytest.mark.parametrize("side", Role)
def test_an_identity_that_may_do_everything_is_fine(side: Role) -> None:
    checks = bucket_checks(side, FakeBucket())
    assert outcomes(checks) == {Outcome.OK}
    assert checks[0] == Check(f"{side} identity", Outcome.OK, EMAIL)


@pytest.mark.parametrize("side", Role)
@pytest.mark.parametrize("permission", BUCKET_PERMISSIONS)
def test_each_missing_permission_is_named_with_its_role_and_grant(side: Role, permission: str) -> None:
    failed = [
        c for c in bucket_checks(side, FakeBucket(frozenset({permission}))) if c.outcome is Outcome.FAIL
    ]
    assert failed
    for check in failed:
        assert f"no {permission} on gs://kbq-bucket" in check.found
        assert f"--member=serviceAccount:{EMAIL} --role={BUCKET_PERMISSIONS[permission]}" in check.fix


def test_what_a_condition_grants_in_a_sides_own_folders_is_enough() -> None:
    conditions = {
        "storage.objects.create": CREATES_IN[Role.LOAD],
        "storage.objects.delete": DELETES_IN[Role.LOAD],
    }
    bucket = FakeBucket(frozenset(conditions), conditions)
    assert outcomes(bucket_checks(Role.LOAD, bucket)) == {Outcome.OK}
    assert [c.found for c in bucket_checks(Role.EXTRACT, bucket) if c.outcome is Outcome.FAIL] == [
        "no storage.objects.create on gs://kbq-bucket in backlog/ backup/ commits/ costs/ done/ erasures/ manifests/"
        " replays/ shapes/",
        "no storage.objects.delete on gs://kbq-bucket in commits/ erasures/ replays/ shapes/",
    ]


def test_credentials_that_cannot_be_had_are_reported_with_the_adapters_advice() -> None:
    def no_credentials() -> Any:
        raise ConfigurationError("no file", next_step="make one")

    expected = Check("load bucket", Outcome.FAIL, "no file", "make one")
    assert list(examine_bucket(Role.LOAD, PLACE, no_credentials)) == [expected]


def test_where_nothing_answers_nothing_more_is_asked() -> None:
    settings = parse_settings(
        {
            "KBQ_STAGING": "gs://kbq-bucket/staging",
            "KBQ_WAREHOUSE": "bigquery://my-project",
            "KBQ_EXTRACT_CREDENTIALS": "file:/no/such/file",
            "KBQ_LOAD_CREDENTIALS": "file:/no/such/file",
        }
    )
    checks = list(examine_google(settings))
    assert [check.name for check in checks] == ["extract bucket", "load bucket"]
    assert outcomes(checks) == {Outcome.FAIL}


@pytest.mark.parametrize(
    ("report", "outcome", "found"),
    [
        (BucketReport((), ()), Outcome.OK, "not public; nothing deletes, retains or holds its objects"),
        (BucketReport((), ("not enforced",)), Outcome.WARN, "not enforced"),
        (BucketReport(("it is public",), ()), Outcome.FAIL, "it is public"),
        (Unavailable("no answer"), Outcome.FAIL, "no answer"),
    ],
)
def test_a_bucket_that_is_not_safe_fails(
    report: BucketReport | KbqError, outcome: Outcome, found: str
) -> None:
    (check,) = examine_safety(lambda: FakeBucket(report=report))
    assert (check.outcome, check.found) == (outcome, found)


@pytest.mark.parametrize(
    ("store_ms", "outcome"),
    [
        (1_000_000, Outcome.OK),
        (1_059_999, Outcome.OK),
        (940_000, Outcome.WARN),
        (1_300_000, Outcome.FAIL),
        (700_000, Outcome.FAIL),
    ],
)
def test_a_clock_that_is_off_is_reported(store_ms: int, outcome: Outcome) -> None:
    assert examine_clock(lambda: store_ms, lambda: 1_000_000).outcome is outcome


def test_a_clock_that_cannot_be_compared_does_not_fail() -> None:
    def no_answer() -> int:
        raise Unavailable("no answer")

    assert examine_clock(no_answer, lambda: 0).outcome is Outcome.WARN


def test_a_loader_that_may_do_everything_is_fine() -> None:
    checks = warehouse_checks(FakeBigQuery())
    assert outcomes(checks) == {Outcome.OK}
    assert checks[0].found == f"bigquery.jobs.create in my-project, as {EMAIL}"


def test_no_jobs_means_that_nothing_else_is_asked() -> None:
    (check,) = warehouse_checks(FakeBigQuery(who=Refused("no")))
    assert (check.outcome, check.found) == (Outcome.FAIL, "no bigquery.jobs.create on project my-project")
    assert check.fix.endswith(
        f"--member=serviceAccount:{EMAIL} --role=roles/bigquery.jobUser --condition=None"
    )


@pytest.mark.parametrize(
    ("bigquery", "permission"),
    [
        (FakeBigQuery(where=Refused("no")), "bigquery.datasets.get"),
        (FakeBigQuery(lists=False), "bigquery.tables.list"),
        (FakeBigQuery(tables=Refused("no")), "bigquery.tables.create"),
        *(
            (FakeBigQuery(tables=frozenset(TABLE_PERMISSIONS) - {permission}), permission)
            for permission in TABLE_PERMISSIONS
        ),
    ],
)
def test_each_permission_missing_on_a_dataset_is_named_with_its_grant(
    bigquery: FakeBigQuery, permission: str
) -> None:
    (check,) = (check for check in warehouse_checks(bigquery) if check.outcome is Outcome.FAIL)
    assert (check.name, check.found) == ("dataset shop", f"no {permission} on shop")
    assert (
        f'GRANT `roles/bigquery.dataEditor` ON SCHEMA `my-project`.shop TO "serviceAccount:{EMAIL}"'
        in check.fix
    )


def test_a_dataset_that_is_not_there_comes_with_the_command_that_makes_it() -> None:
    *_, check = warehouse_checks(FakeBigQuery(where=NotFound("no")))
    assert check.outcome is Outcome.WARN
    assert check.fix == "bq --location=EU mk --dataset my-project:shop"


@pytest.mark.parametrize(
    ("dataset", "bucket", "fix"),
    [
        ("US", "US", "set KBQ_WAREHOUSE=bigquery://my-project?location=US"),
        ("EU", "US", "stage to a bucket in EU"),
    ],
)
def test_places_that_do_not_go_together_fail(dataset: str, bucket: str, fix: str) -> None:
    checks = warehouse_checks(FakeBigQuery(where=dataset), FakeBucket(where=bucket))
    (check,) = (check for check in checks if check.outcome is Outcome.FAIL)
    assert fix in check.fix


def test_a_dataset_whose_new_tables_expire_is_reported() -> None:
    (check,) = (c for c in warehouse_checks(FakeBigQuery(expiry_days=60.0)) if c.outcome is Outcome.WARN)
    assert (check.name, "expire after 60 days" in check.found) == ("dataset shop", True)


def test_what_makes_a_bucket_expensive_is_reported() -> None:
    checks = list(examine_safety(lambda: FakeBucket(report=BucketReport((), (), ("it is in EU",)))))
    assert Check("bucket costs", Outcome.WARN, "it is in EU") in checks
    assert outcomes(checks) == {Outcome.OK, Outcome.WARN}


def test_a_bucket_whose_place_may_not_be_seen_is_no_reason_to_fail() -> None:
    checks = warehouse_checks(FakeBigQuery(), FakeBucket(where=Refused("no")))
    assert outcomes(checks) == {Outcome.OK, Outcome.WARN}


def test_one_dataset_out_of_reach_does_not_end_the_examination() -> None:
    bigquery = FakeBigQuery(where=Unavailable("no answer", next_step="try again"))
    assert warehouse_checks(bigquery)[-1] == Check("dataset shop", Outcome.FAIL, "no answer", "try again")


def test_a_local_platform_has_nothing_to_examine(run: Shell) -> None:
    result = run("doctor", "--gcp", "--json")
    assert result.exit_code == 1
    assert "set KBQ_STAGING=gs://bucket/prefix" in result.stdout


def test_policy_tags_are_asked_for_where_the_catalogue_has_some() -> None:
    """A table is not created unprotected: without this permission its load waits."""
    wanted = (*TABLE_PERMISSIONS, SET_CATEGORY)
    checks = list(examine_warehouse(EU, ["shop"], FakeBucket, FakeBigQuery, wanted))
    (failed,) = (check for check in checks if check.outcome is Outcome.FAIL)
    assert failed.found == "no bigquery.tables.setCategory on shop"
    assert "--permissions=bigquery.tables.setCategory,datacatalog.taxonomies.get" in failed.fix
    assert f"--member=serviceAccount:{EMAIL} --role=projects/{EU.project}/roles/kbqPolicyTags" in failed.fix
    granted = FakeBigQuery(tables=frozenset(wanted))
    assert outcomes(list(examine_warehouse(EU, ["shop"], FakeBucket, lambda: granted, wanted))) == {
        Outcome.OK
    }
