"""Batches of files in BigQuery: one load job, or one query job over an external table, with the configured keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.cloud import bigquery

from kbq_assets.adapters.bigquery.insertions import JobKey, insert_load, insert_query
from kbq_assets.adapters.bigquery.load_jobs import JOB_TIMEOUT_MS, STATEMENT
from kbq_assets.core.errors import JobFailed
from kbq_assets.core.filebatches.hive import check_hive
from kbq_assets.ports.file_loads import FileJob


class BigQueryFileLoads:
    """`FileLoads` with a client that sends each request once. ``datasets`` is the datasets' project."""

    def __init__(self, client: bigquery.Client, datasets: str, kms_key: str = "") -> None:
        self._client = client
        self._datasets = datasets
        self._kms_key = kms_key

    def check(self, config: Mapping[str, Any], sql: str) -> None:
        """Raise ConfigurationError for keys that KBQ does not support. BigQuery validates the values."""
        check_hive(config.get("hivePartitioningOptions", {}))

    def insert(self, job: FileJob) -> None:
        """Send a job once. Raises the errors in the table of outcomes (adapters/bigquery/outcomes.py)."""
        if wild := next((uri for uri in job.sizes if "*" in uri), None):
            raise JobFailed(f"{wild}: BigQuery takes the * in its name for a pattern: rename the file")
        target = job.target
        table = bigquery.DatasetReference(target.project or self._datasets, target.dataset).table(
            f"{target.table}{target.decorator}"
        )
        if job.sql:
            return self._insert_statement(job)
        key, config = JobKey(job.job_id, job.project, job.location), load_config(job, self._kms_key)
        insert_load(self._client, f" of table {target}", job.source_uris, table, key, config)

    def _insert_statement(self, job: FileJob) -> None:
        """Send a statement over the external table `temp_ext` once."""
        config = bigquery.QueryJobConfig(
            use_legacy_sql=False,
            table_definitions={"temp_ext": external_config(job)},
            labels={**job.labels, STATEMENT: job.digest},
            job_timeout_ms=JOB_TIMEOUT_MS,
        )
        key, text = JobKey(job.job_id, job.project, job.location), rendered(job, self._datasets)
        insert_query(self._client, f" of table {job.target}", text, key, config)


def rendered(job: FileJob, datasets: str) -> str:
    """A statement with its table's name filled in, as Google's tool does it. The name excludes the partition."""
    project = job.target.project or datasets
    dataset = f"`{project}`.{job.target.dataset}"
    return job.sql.replace("{dest_dataset}", dataset).replace("{dest_table}", job.target.table)


def external_config(job: FileJob) -> bigquery.ExternalConfig:
    """The definition of `temp_ext` over the batch's files, with the keys of external.json unchanged."""
    return bigquery.ExternalConfig.from_api_repr({**_with_hive(job), "sourceUris": list(job.source_uris)})


def load_config(job: FileJob, kms_key: str = "") -> bigquery.LoadJobConfig:
    """The configuration of a load job: the keys unchanged, plus KBQ's labels and the prefix of hive partitions."""
    load = _with_hive(job)
    load.setdefault("useAvroLogicalTypes", True)
    labels = {**load.pop("labels", {}), **job.labels}
    config: Any = bigquery.LoadJobConfig.from_api_repr({"load": load})
    config.labels = labels
    config.job_timeout_ms = JOB_TIMEOUT_MS
    if kms_key:
        config.destination_encryption_configuration = bigquery.EncryptionConfiguration(kms_key)
    return config  # type: ignore[no-any-return]  # the client's type hints name its base class


def _with_hive(job: FileJob) -> dict[str, Any]:
    config = dict(job.config)
    if (hive := config.get("hivePartitioningOptions")) is not None:
        found = {"sourceUriPrefix": hive_prefix(job.source_uris[0])}
        config["hivePartitioningOptions"] = {"mode": "AUTO", **found, **hive}
    return config


def hive_prefix(uri: str) -> str:
    """The part of a URI before its first `key=value` directory, as Google's tool finds it."""
    folders = uri.split("/")
    first = next((place for place, folder in enumerate(folders[:-1]) if "=" in folder), len(folders) - 1)
    return "/".join(folders[:first])
