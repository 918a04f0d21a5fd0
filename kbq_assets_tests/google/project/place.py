"""A project to test in. All that a run makes there has the run's own name in front."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.api_core.exceptions import NotFound
from google.cloud.bigquery import Client

from kbq_assets.adapters.gcs import GcsObjectStore, open_gcs_store
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.adapters.google.clients import bigquery_client
from kbq_assets.core.config.locations import BigQueryProject

_NEEDED = ("KBQ_TEST_GCP_PROJECT", "KBQ_TEST_GCP_BUCKET")


def _run_name() -> str:
    return f"kbq_test_{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class Place:
    """Where and as whom. ``run`` begins every name."""

    project: str
    bucket: str
    location: str
    gcs: GoogleAccess
    bigquery: GoogleAccess
    run: str = field(default_factory=_run_name)
    _numbers: Any = field(default_factory=lambda: itertools.count(1), repr=False)

    @staticmethod
    def of_environ(environ: Mapping[str, str]) -> Place:
        """The project that the variables name; endpoints and credentials as KBQ's own variables say."""
        if missing := [name for name in _NEEDED if not environ.get(name)]:
            raise pytest.UsageError(f"RUN_INTEGRATION_TESTS=true needs {' and '.join(missing)}")
        credentials = environ.get("KBQ_LOAD_CREDENTIALS", "")
        return Place(
            environ["KBQ_TEST_GCP_PROJECT"],
            environ["KBQ_TEST_GCP_BUCKET"],
            environ.get("KBQ_TEST_GCP_LOCATION", "US"),
            GoogleAccess(credentials, environ.get("KBQ_GCS_ENDPOINT", "")),
            GoogleAccess(credentials, environ.get("KBQ_BIGQUERY_ENDPOINT", "")),
        )

    def new_name(self) -> str:
        """A name of a test's own."""
        return f"{self.run}_{next(self._numbers)}"

    def client(self) -> Client:
        """The real client."""
        return bigquery_client(self.bigquery, BigQueryProject(self.project, self.location))

    def store(self, name: str) -> GcsObjectStore:
        """The store in a folder of the bucket."""
        return open_gcs_store(f"gs://{self.bucket}/{self.run}/{name}", self.gcs)

    def clear(self) -> None:
        """Remove the run's objects and datasets."""
        store = open_gcs_store(f"gs://{self.bucket}/{self.run}", self.gcs)
        failures = store.delete_many([entry.path for entry in store.list("")])
        assert failures == {}, f"left in gs://{self.bucket}/{self.run}: {failures}"
        with contextlib.closing(self.client()) as client:
            for dataset in client.list_datasets():
                if dataset.dataset_id.startswith(self.run):
                    with contextlib.suppress(NotFound):
                        client.delete_dataset(dataset.reference, delete_contents=True)
