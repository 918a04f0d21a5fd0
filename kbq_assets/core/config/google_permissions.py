"""The minimal permissions of each role on Google Cloud, Google's roles that have them, and the commands to grant them.
The folders are those that the pipelines write; a test records the calls and compares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.backup.backup_names import BACKUP
from kbq_assets.core.config.locations import BigQueryProject, Bucket
from kbq_assets.core.config.roles import Role
from kbq_assets.core.erasure.model import ERASURES
from kbq_assets.core.extraction.cost import COSTS
from kbq_assets.core.observation.run_totals import METRICS
from kbq_assets.core.protocol.names import (
    BACKLOG,
    COMMITS,
    COMPLETENESS,
    DONE,
    FILE_BATCHES,
    MANIFESTS,
    NOTICES,
    QUARANTINE,
    SCHEMAS,
    STAGING,
    TABLES,
)
from kbq_assets.core.replay.model import AREAS, REPLAYS
from kbq_assets.core.topics.evolution import VARIANTS
from kbq_assets.core.topics.json.inference import SHAPES

#: Folders of the staging area in which a role creates objects.
CREATES_IN: Final[Mapping[Role, tuple[str, ...]]] = {
    Role.EXTRACT: (
        *(BACKLOG, BACKUP, COMMITS, COSTS, DONE, ERASURES),
        *(MANIFESTS, METRICS, VARIANTS, AREAS, REPLAYS, SCHEMAS, SHAPES, STAGING),
    ),
    Role.LOAD: (
        *(COMPLETENESS, FILE_BATCHES, METRICS, NOTICES, VARIANTS, QUARANTINE),
        *(AREAS, SCHEMAS, STAGING, TABLES),
    ),
}
#: Folders in which a role deletes or replaces objects, which need the same permission in Cloud Storage.
DELETES_IN: Final[Mapping[Role, tuple[str, ...]]] = {
    Role.EXTRACT: (BACKUP, COMMITS, DONE, ERASURES, METRICS, VARIANTS, AREAS, REPLAYS, SHAPES),
    Role.LOAD: (
        *(BACKLOG, BACKUP, COMPLETENESS, DONE, FILE_BATCHES, MANIFESTS),
        *(METRICS, NOTICES, VARIANTS, QUARANTINE, AREAS, STAGING, TABLES),
    ),
}

CREATE_OBJECTS: Final = "storage.objects.create"
DELETE_OBJECTS: Final = "storage.objects.delete"
GET_BUCKET: Final = "storage.buckets.get"
#: Needed by both roles. A load job reads the bucket and its files with the loader's permissions.
BUCKET_PERMISSIONS: Final[Mapping[str, str]] = {
    GET_BUCKET: "roles/storage.legacyBucketReader",
    "storage.objects.get": "roles/storage.objectViewer",
    "storage.objects.list": "roles/storage.objectViewer",
    CREATE_OBJECTS: "roles/storage.objectUser",
    DELETE_OBJECTS: "roles/storage.objectUser",
}

RUN_JOBS: Final = "bigquery.jobs.create"
GET_DATASET: Final = "bigquery.datasets.get"
CREATE_TABLES: Final = "bigquery.tables.create"
LIST_TABLES: Final = "bigquery.tables.list"
#: Needed only by the loader; extraction does not use BigQuery.
TABLE_PERMISSIONS: Final = (
    "bigquery.tables.delete",  # scratch tables of probes
    "bigquery.tables.get",
    "bigquery.tables.getData",
    "bigquery.tables.update",
    "bigquery.tables.updateData",
)
SET_CATEGORY: Final = "bigquery.tables.setCategory"
#: Needed by the loader if the catalog has policy tags. Taxonomies belong to a project, not to a dataset.
POLICY_TAG_PERMISSIONS: Final = (SET_CATEGORY, "datacatalog.taxonomies.get")
#: Needed only to apply `access.readers` of a catalog, and never by runs.
UPDATE_DATASET: Final = "bigquery.datasets.update"
#: A project may also require these two to read and change a dataset's access list.
GET_DATASET_POLICY: Final = "bigquery.datasets.getIamPolicy"
SET_DATASET_POLICY: Final = "bigquery.datasets.setIamPolicy"
GET_TABLE_POLICY: Final = "bigquery.tables.getIamPolicy"
SET_TABLE_POLICY: Final = "bigquery.tables.setIamPolicy"
GET_BUCKET_POLICY: Final = "storage.buckets.getIamPolicy"
SET_BUCKET_POLICY: Final = "storage.buckets.setIamPolicy"
READER_PERMISSIONS: Final = (
    *(GET_DATASET, GET_DATASET_POLICY, UPDATE_DATASET, SET_DATASET_POLICY),
    *(GET_TABLE_POLICY, SET_TABLE_POLICY),
    *(GET_BUCKET, GET_BUCKET_POLICY, SET_BUCKET_POLICY),
)
#: The granted roles. A dataset's access list shows the first one as READER.
READER_TABLE_ROLE: Final = "roles/bigquery.dataViewer"
READER_BUCKET_ROLE: Final = "roles/storage.objectViewer"
JOB_ROLE: Final = "roles/bigquery.jobUser"
DATASET_ROLE: Final = "roles/bigquery.dataEditor"
#: Without it, gcloud prompts (and so fails in a script) if the policy already has conditions.
_NO_CONDITION: Final = "--condition=None"


@dataclass(frozen=True)
class Grant:
    """A role with a permission, and the command that grants it."""

    role: str
    command: str


def bucket_grant(bucket: Bucket, permission: str, member: str) -> Grant:
    role = BUCKET_PERMISSIONS[permission]
    words = "gcloud storage buckets add-iam-policy-binding"
    return Grant(role, f"{words} gs://{bucket.name} --member={member} --role={role} {_NO_CONDITION}")


def job_grant(place: BigQueryProject, member: str) -> Grant:
    words = f"gcloud projects add-iam-policy-binding {place.project}"
    return Grant(JOB_ROLE, f"{words} --member={member} --role={JOB_ROLE} {_NO_CONDITION}")


def dataset_grant(place: BigQueryProject, dataset: str, member: str) -> Grant:
    """The grant for all that loading does in a dataset, in SQL because gcloud has no command for it."""
    sql = f'GRANT `{DATASET_ROLE}` ON SCHEMA `{place.data_project}`.{dataset} TO "{member}"'
    command = (
        f"bq query --project_id={place.project} --location={place.location} --use_legacy_sql=false '{sql}'"
    )
    return Grant(DATASET_ROLE, command)


def policy_tag_grant(place: BigQueryProject, member: str) -> Grant:
    """The grant to set policy tags, by a custom role because no role of Google's has just these two permissions."""
    role = f"projects/{place.project}/roles/kbqPolicyTags"
    create = (
        f"gcloud iam roles create kbqPolicyTags --project={place.project} --stage=GA"
        f" --permissions={','.join(POLICY_TAG_PERMISSIONS)}"
    )
    bind = f"gcloud projects add-iam-policy-binding {place.project} --member={member} --role={role}"
    return Grant(role, f"{create} && {bind} {_NO_CONDITION}")


def member_of(identity: str) -> str:
    """The IAM member of an identity; a placeholder if the credentials do not name their owner."""
    if identity.endswith(".gserviceaccount.com"):
        return f"serviceAccount:{identity}"
    return f"user:{identity}" if "@" in identity else "MEMBER"


#: European regions outside BigQuery's multi-region EU: London and Zurich.
_OUTSIDE_EU: Final = ("europe-west2", "europe-west6")
#: Cloud Storage's predefined dual-regions.
_DUAL_REGIONS: Final[Mapping[str, tuple[str, str]]] = {
    "asia1": ("asia-northeast1", "asia-northeast2"),
    "eur4": ("europe-north1", "europe-west4"),
    "eur5": ("europe-west1", "europe-west2"),
    "eur7": ("europe-west2", "europe-west3"),
    "eur8": ("europe-west3", "europe-west6"),
    "nam4": ("us-central1", "us-east1"),
}
_MULTI_REGIONS: Final = ("asia", "eu", "us")


def can_load(bucket: str, dataset: str, regions: Collection[str] = ()) -> bool:
    """Whether a dataset may load files from a bucket, by their locations. ``regions`` are those of a configurable
    dual-region. A dataset in US loads from anywhere. Otherwise both must be in one region, or one must contain the
    other. https://cloud.google.com/bigquery/docs/batch-loading-data#data-locations"""
    bucket, dataset = bucket.lower(), dataset.lower()
    if dataset in ("us", bucket):
        return True
    held = tuple(region.lower() for region in regions) or _DUAL_REGIONS.get(bucket, ())
    if held:
        return dataset in held or any(_contains(dataset, region) for region in held)
    return _contains(bucket, dataset) or _contains(dataset, bucket)


def is_regional(bucket: str, regions: Collection[str] = ()) -> bool:
    """Whether a bucket is in a single region, where writes cost half as much and are not replicated."""
    return not regions and bucket.lower() not in (*_MULTI_REGIONS, *_DUAL_REGIONS)


def _contains(multi: str, region: str) -> bool:
    if multi == "eu":
        return region.startswith("europe-") and region not in _OUTSIDE_EU
    return multi in _MULTI_REGIONS and region.startswith(f"{multi}-")
