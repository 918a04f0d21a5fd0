"""A project to test in. All that a run makes there has the run's own name in front."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from google.api_core.exceptions import NotFound
from google.cloud.bigquery import Client, QueryJobConfig

from kbq_assets.adapters.gcs import GcsObjectStore, open_gcs_store
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.adapters.google.clients import bigquery_client
from kbq_assets.core.config.locations import BigQueryProject

_NEEDED: Final = ("KBQ_TEST_GCP_PROJECT", "KBQ_TEST_GCP_BUCKET")


#: A run that began so long ago is dead: what it left in the project goes.
LEASE_HOURS: Final = 6
#: A query of the suite that would read more fails.
MOST_BYTES_BILLED: Final = 1 << 30
_RUN: Final = re.compile(r"kbq_test_([0-9a-f]+)_[0-9a-f]{8}")


def run_name(hours: int | None = None) -> str:
    """Tells when the run began, in hours since 1970."""
    began = int(time.time() // 3600) if hours is None else hours
    return f"kbq_test_{began:x}_{uuid.uuid4().hex[:8]}"


def is_dead(name: str, hours: int) -> bool:
    """Whether a dataset or folder is of a run whose lease ended before this hour. Others' names never are."""
    found = _RUN.match(name)
    return found is not None and int(found[1], 16) + LEASE_HOURS < hours


def policy_tags(environ: Mapping[str, str]) -> tuple[str, str]:
    """The two tags of `KBQ_TEST_GCP_POLICY_TAGS`, with a comma between them; without it columns get none."""
    first, _, second = environ.get("KBQ_TEST_GCP_POLICY_TAGS", "").partition(",")
    return first, second


@dataclass(frozen=True)
class Place:
    """The project and the identities. ``run`` is the prefix of every name."""

    project: str
    bucket: str
    location: str
    gcs: GoogleAccess
    bigquery: GoogleAccess
    run: str = field(default_factory=run_name)
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
        """The real client, whose queries are bounded."""
        client = bigquery_client(self.bigquery, BigQueryProject(self.project, self.location))
        client.default_query_job_config = QueryJobConfig(maximum_bytes_billed=MOST_BYTES_BILLED)
        return client

    def store(self, name: str) -> GcsObjectStore:
        """The store in a folder of the bucket."""
        return open_gcs_store(f"gs://{self.bucket}/{self.run}/{name}", self.gcs)

    def clear(self) -> None:
        """Remove the run's objects and datasets."""
        self._remove(lambda name: name.startswith(self.run))

    def sweep(self) -> None:
        """Remove what killed runs left. Datasets cannot expire by themselves: KBQ's tables do not inherit it."""
        hours = int(time.time() // 3600)
        self._remove(lambda name: is_dead(name, hours))

    def _remove(self, is_ours: Callable[[str], bool]) -> None:
        store = open_gcs_store(f"gs://{self.bucket}", self.gcs)
        paths = [entry.path for entry in store.list("kbq_test_") if is_ours(entry.path)]
        failures = store.delete_many(paths)
        assert failures == {}, f"left in gs://{self.bucket}: {failures}"
        with contextlib.closing(self.client()) as client:
            for dataset in client.list_datasets():
                if is_ours(dataset.dataset_id):
                    with contextlib.suppress(NotFound):
                        client.delete_dataset(dataset.reference, delete_contents=True)
