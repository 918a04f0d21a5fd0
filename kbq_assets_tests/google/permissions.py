"""The permissions that an API call needs, so that a test can remove one.

https://cloud.google.com/bigquery/docs/access-control, https://cloud.google.com/storage/docs/access-control/iam-json
"""

from __future__ import annotations

NEEDS = {
    "jobs.insert": "bigquery.jobs.create",
    "jobs.query": "bigquery.jobs.create",
    "jobs.get": "bigquery.jobs.get",
    "jobs.cancel": "bigquery.jobs.update",
    "datasets.insert": "bigquery.datasets.create",
    "datasets.get": "bigquery.datasets.get",
    "tables.list": "bigquery.tables.list",
    "tables.insert": "bigquery.tables.create",
    "tables.get": "bigquery.tables.get",
    "tables.patch": "bigquery.tables.update",
    "tables.update": "bigquery.tables.update",
    "tables.delete": "bigquery.tables.delete",
    "tabledata.list": "bigquery.tables.getData",
    "buckets.get": "storage.buckets.get",
    "buckets.getIamPolicy": "storage.buckets.getIamPolicy",
    "objects.insert": "storage.objects.create",
    "objects.get": "storage.objects.get",
    "objects.download": "storage.objects.get",
    "objects.list": "storage.objects.list",
    "objects.delete": "storage.objects.delete",
}

#: Setting policy tags, next to changing or creating the table.
SET_CATEGORY = "bigquery.tables.setCategory"


def denied_message(permission: str, resource: str) -> str:
    """What Google says to a caller who may not."""
    return f"Permission '{permission}' denied on resource '{resource}' (or it may not exist)."
