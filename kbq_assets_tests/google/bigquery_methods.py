"""The names of BigQuery's API methods by verb and path: https://cloud.google.com/bigquery/docs/reference/rest."""

from __future__ import annotations

import re

_PREFIX = r"(?:/upload)?/bigquery/v2/projects/[^/]+"
_TABLE = r"/datasets/[^/]+/tables"
METHODS = tuple(
    (verb, re.compile(_PREFIX + path), name)
    for verb, path, name in (
        ("POST", r"/jobs", "jobs.insert"),
        ("GET", r"/jobs", "jobs.list"),
        ("GET", r"/jobs/[^/]+", "jobs.get"),
        ("POST", r"/jobs/[^/]+/cancel", "jobs.cancel"),
        ("POST", r"/queries", "jobs.query"),
        ("GET", r"/queries/[^/]+", "jobs.getQueryResults"),
        ("GET", r"/datasets", "datasets.list"),
        ("POST", r"/datasets", "datasets.insert"),
        ("GET", r"/datasets/[^/]+", "datasets.get"),
        ("PATCH", r"/datasets/[^/]+", "datasets.patch"),
        ("PUT", r"/datasets/[^/]+", "datasets.update"),
        ("DELETE", r"/datasets/[^/]+", "datasets.delete"),
        ("GET", _TABLE, "tables.list"),
        ("POST", _TABLE, "tables.insert"),
        ("GET", _TABLE + r"/[^/]+", "tables.get"),
        ("PATCH", _TABLE + r"/[^/]+", "tables.patch"),
        ("PUT", _TABLE + r"/[^/]+", "tables.update"),
        ("DELETE", _TABLE + r"/[^/]+", "tables.delete"),
        ("GET", _TABLE + r"/[^/]+/data", "tabledata.list"),
        ("POST", _TABLE + r"/[^/]+:testIamPermissions", "tables.testIamPermissions"),
    )
)
