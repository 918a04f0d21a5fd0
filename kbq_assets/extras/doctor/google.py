"""``kbq doctor --gcp``: checks each role's permissions on Google Cloud, and shows how to grant missing ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from kbq_assets.core.config.google_permissions import (
    BUCKET_PERMISSIONS,
    CREATE_OBJECTS,
    CREATE_TABLES,
    CREATES_IN,
    DELETE_OBJECTS,
    DELETES_IN,
    GET_DATASET,
    LIST_TABLES,
    RUN_JOBS,
    SET_CATEGORY,
    TABLE_PERMISSIONS,
    Grant,
    bucket_grant,
    can_load,
    dataset_grant,
    job_grant,
    member_of,
    policy_tag_grant,
)
from kbq_assets.core.config.locations import BigQueryProject, Bucket
from kbq_assets.core.config.roles import Role
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import KbqError, NotFound, Refused
from kbq_assets.core.plurals import counted
from kbq_assets.extras.doctor.check import Check, Outcome
from kbq_assets.worker.adapters import open_load_store

if TYPE_CHECKING:
    from kbq_assets.adapters.gcs import BucketReport
    from kbq_assets.extras.doctor.google_questions import DatasetFacts

#: Google rejects tokens if a clock is five minutes off.
WARN_SKEW_MS: Final = 60_000
FAIL_SKEW_MS: Final = 300_000
_FOLDERS: Final = {CREATE_OBJECTS: CREATES_IN, DELETE_OBJECTS: DELETES_IN}


class BucketQuestions(Protocol):
    """Queries of one identity about the staging area. `examine_bucket` interprets the answers."""

    identity: str

    def granted(self, wanted: Collection[str]) -> frozenset[str]:
        """The ``wanted`` permissions that the identity has for all objects of the bucket."""

    def may_in(self, folder: str, permission: str) -> bool:
        """Whether the identity has a permission in one folder."""

    def location(self) -> tuple[str, tuple[str, ...]]:
        """The bucket's location, and the regions of a configurable dual-region."""

    def safety(self) -> BucketReport:
        """Properties of the bucket that endanger staged data."""


class WarehouseQuestions(Protocol):
    """Queries of the loader about BigQuery."""

    def job_identity(self) -> str:
        """The identity of jobs. Raises Refused if it may not run jobs."""

    def dataset(self, name: str) -> DatasetFacts:
        """A dataset's location and default expiration."""

    def may_list(self, dataset: str) -> bool:
        """Whether the dataset's tables can be listed."""

    def table_permissions(self, dataset: str) -> frozenset[str]:
        """The granted permissions on the dataset's tables, of `TABLE_PERMISSIONS` and of setting policy tags. Raises
        Refused if no table can be created."""


def examine_google(settings: Settings) -> Generator[Check, None, bool]:
    """All checks of the staging area, dependencies first. Returns whether the bucket answered."""
    place = settings.staging
    if not isinstance(place, Bucket):
        fix = "set KBQ_STAGING=gs://bucket/prefix (docs/google-cloud.md)"
        yield Check("staging", Outcome.FAIL, f"{settings.staging_url} is not a bucket", fix)
        return False
    answered = False
    for side in Role:
        answered |= yield from examine_bucket(side, place, partial(_ask_bucket, settings, place, side))
    if answered:
        yield from examine_safety(lambda: _ask_bucket(settings, place, Role.LOAD))
        yield examine_clock(lambda: open_load_store(settings).now_ms(), now_ms)
    return answered


def examine_project(
    settings: Settings, datasets: Iterable[str], *, policy_tags: bool = False
) -> Iterator[Check]:
    """All checks of the chosen warehouse, if it is BigQuery and loads from a bucket. ``policy_tags``: whether the
    catalog has policy tags."""
    place, warehouse = settings.staging, settings.warehouse
    if isinstance(warehouse, BigQueryProject) and isinstance(place, Bucket):
        yield from examine_warehouse(
            warehouse,
            datasets,
            lambda: _ask_bucket(settings, place, Role.LOAD),
            lambda: _ask_warehouse(settings, warehouse),
            TABLE_PERMISSIONS + ((SET_CATEGORY,) if policy_tags else ()),
        )


def examine_bucket(
    side: Role, place: Bucket, open_questions: Callable[[], BucketQuestions]
) -> Generator[Check, None, bool]:
    """A role's identity, and its permissions in the staging area. Returns whether the bucket answered."""
    name = f"{side} bucket"
    try:
        questions = open_questions()
        yield Check(f"{side} identity", Outcome.OK, questions.identity)
        missing = list(_missing(side, questions))
    except KbqError as error:
        yield Check(
            name, Outcome.FAIL, error.message, error.next_step or "set KBQ_STAGING=gs://bucket/prefix"
        )
        return False
    member = member_of(questions.identity)
    for permission, where in missing:
        grant = bucket_grant(place, permission, member)
        yield _denied(name, permission, f"gs://{place.name}{where}", grant)
    if not missing:
        yield Check(name, Outcome.OK, f"gs://{place.name}: {', '.join(BUCKET_PERMISSIONS)}")
    return True


def examine_safety(open_questions: Callable[[], BucketQuestions]) -> Iterator[Check]:
    """Properties of the bucket that endanger staged data. Extraction and loading refuse such a bucket."""
    try:
        report = open_questions().safety()
    except KbqError as error:
        yield Check("bucket safety", Outcome.FAIL, error.message, error.next_step)
        return
    for problem in report.problems:
        yield Check(
            "bucket safety", Outcome.FAIL, problem, "extract and load refuse this bucket until it is fixed"
        )
    for warning in report.warnings:
        yield Check("bucket safety", Outcome.WARN, warning)
    for cost in report.costs:
        yield Check("bucket costs", Outcome.WARN, cost)
    if not report.problems and not report.warnings:
        yield Check("bucket safety", Outcome.OK, "not public; nothing deletes, retains or holds its objects")


def examine_clock(store_ms: Callable[[], int], local_ms: Callable[[], int]) -> Check:
    """Whether this machine's clock is right enough for Google's tokens. KBQ itself uses the store's time."""
    try:
        skew = abs(store_ms() - local_ms())
    except KbqError as error:
        return Check("clock", Outcome.WARN, f"not compared: {error.message}", error.next_step)
    outcome = Outcome.FAIL if skew >= FAIL_SKEW_MS else Outcome.WARN if skew >= WARN_SKEW_MS else Outcome.OK
    fix = "" if outcome is Outcome.OK else "set this machine's clock (NTP)"
    return Check("clock", outcome, f"{skew / 1000:.0f} s off Cloud Storage's", fix)


def examine_warehouse(
    place: BigQueryProject,
    datasets: Iterable[str],
    open_bucket: Callable[[], BucketQuestions],
    open_warehouse: Callable[[], WarehouseQuestions],
    wanted: Collection[str] = TABLE_PERMISSIONS,
) -> Iterator[Check]:
    """The loader's permissions in BigQuery, and whether BigQuery can load from the bucket. ``wanted`` are the required
    permissions on tables."""
    member = "MEMBER"
    try:
        bucket, questions = open_bucket(), open_warehouse()
        member = member_of(bucket.identity)
        who = questions.job_identity()
        yield Check(
            "load jobs", Outcome.OK, f"{RUN_JOBS} in {place.project}" + (f", as {who}" if who else "")
        )
        member = member_of(who or bucket.identity)
    except Refused:
        yield _denied("load jobs", RUN_JOBS, f"project {place.project}", job_grant(place, member))
        return
    except KbqError as error:
        yield Check("load jobs", Outcome.FAIL, error.message, error.next_step)
        return
    for dataset in datasets:
        try:
            yield from _dataset(place, dataset, member, bucket, questions, wanted)
        except KbqError as error:
            yield Check(f"dataset {dataset}", Outcome.FAIL, error.message, error.next_step)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _ask_bucket(settings: Settings, place: Bucket, side: Role) -> BucketQuestions:
    from kbq_assets.adapters.google.auth import GoogleAccess
    from kbq_assets.extras.doctor import google_questions as google_doctor

    google = settings.google
    credentials = google.extract_credentials if side is Role.EXTRACT else google.load_credentials
    return google_doctor.CloudStorageQuestions(GoogleAccess(credentials, google.gcs_endpoint), place)


def _ask_warehouse(settings: Settings, place: BigQueryProject) -> WarehouseQuestions:
    from kbq_assets.adapters.google.auth import GoogleAccess
    from kbq_assets.extras.doctor import google_questions as google_doctor

    google = settings.google
    return google_doctor.BigQueryQuestions(
        GoogleAccess(google.load_credentials, google.bigquery_endpoint), place
    )


def _missing(side: Role, questions: BucketQuestions) -> Iterator[tuple[str, str]]:
    """Permissions that a role lacks, each with its place: "" for everywhere, or a folder."""
    granted = questions.granted(BUCKET_PERMISSIONS)
    for permission in (p for p in BUCKET_PERMISSIONS if p not in granted):
        if permission not in _FOLDERS:
            yield permission, ""
            continue
        folders = [f for f in _FOLDERS[permission][side] if not questions.may_in(f, permission)]
        if folders:
            yield permission, f" in {' '.join(folders)}"


def _dataset(
    place: BigQueryProject,
    dataset: str,
    member: str,
    bucket: BucketQuestions,
    questions: WarehouseQuestions,
    wanted: Collection[str],
) -> Iterator[Check]:
    name, grant = f"dataset {dataset}", dataset_grant(place, dataset, member)
    try:
        found = questions.dataset(dataset)
    except NotFound:
        make = f"bq --location={place.location} mk --dataset {place.data_project}:{dataset}"
        yield Check(
            name, Outcome.WARN, "does not exist; loading creates it only with bigquery.datasets.create", make
        )
        return
    except Refused:
        yield _denied(name, GET_DATASET, dataset, grant)
        return
    yield _colocation(name, found.location, place, bucket)
    if found.expiry_days:
        yield Check(
            name,
            Outcome.WARN,
            f"its new tables or partitions expire after {counted(found.expiry_days, 'day')}; tables that KBQ creates do"
            " not inherit this, but tables that others create do, and KBQ does not load these",
        )
    lacking = list(_lacking(dataset, questions, wanted))
    for permission in lacking:
        is_tags = permission == SET_CATEGORY
        yield _denied(name, permission, dataset, policy_tag_grant(place, member) if is_tags else grant)
    if not lacking:
        yield Check(name, Outcome.OK, "tables can be created, read, altered, loaded and dropped")


def _lacking(dataset: str, questions: WarehouseQuestions, wanted: Collection[str]) -> Iterator[str]:
    if not questions.may_list(dataset):
        yield LIST_TABLES
    try:
        granted: Collection[str] = questions.table_permissions(dataset)
    except Refused:
        yield CREATE_TABLES
        return
    yield from (permission for permission in wanted if permission not in granted)


def _colocation(name: str, location: str, place: BigQueryProject, bucket: BucketQuestions) -> Check:
    if location.lower() != place.location.lower():
        fix = f"set KBQ_WAREHOUSE=bigquery://{place.project}?location={location}"
        return Check(name, Outcome.FAIL, f"is in {location}, but jobs would run in {place.location}", fix)
    try:
        found, regions = bucket.location()
    except KbqError as error:
        return Check(
            name, Outcome.WARN, f"is in {location}; the bucket's location is unknown: {error.message}"
        )
    if can_load(found, location, regions):
        return Check(name, Outcome.OK, f"in {location}, the bucket in {found}")
    fix = f"stage to a bucket in {location}: BigQuery loads across locations only into US"
    return Check(name, Outcome.FAIL, f"is in {location}, but the bucket in {found}", fix)


def _denied(name: str, permission: str, where: str, grant: Grant) -> Check:
    return Check(
        name, Outcome.FAIL, f"no {permission} on {where}", f"{grant.role} grants it: {grant.command}"
    )
