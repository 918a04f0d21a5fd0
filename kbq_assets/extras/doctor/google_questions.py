"""Read-only queries to Google Cloud: permissions of an identity, and locations.

Every query raises Refused (403), NotFound (404), ConfigurationError (the credentials) or Unavailable.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import requests
import urllib3
from google.api_core import exceptions as api
from google.api_core.retry import Retry
from google.auth import exceptions as auth
from google.cloud import bigquery

from kbq_assets.adapters.gcs import BucketReport, check_bucket
from kbq_assets.adapters.google.auth import UNREADABLE, GoogleAccess, google_credentials, identity
from kbq_assets.adapters.google.clients import bigquery_client, storage_client
from kbq_assets.core.config.google_permissions import CREATE_OBJECTS, SET_CATEGORY, TABLE_PERMISSIONS
from kbq_assets.core.config.locations import BigQueryProject, Bucket
from kbq_assets.core.errors import ConfigurationError, NotFound, Refused, Unavailable

#: Timeout in seconds. It is short, because a user waits.
_SECONDS: Final = 10.0
_DAY_MS: Final = 86_400_000
#: Lifetime of a scratch table if the doctor is killed.
_SCRATCH_LIFE: Final = datetime.timedelta(hours=1)


class DatasetFacts(NamedTuple):
    """The properties of a dataset that the doctor checks. ``expiry_days`` is the default for new tables or partitions,
    0 for none."""

    location: str
    expiry_days: float = 0


class CloudStorageQuestions:
    """Queries the staging area as one identity. Raises ConfigurationError if there are no credentials."""

    def __init__(self, access: GoogleAccess, place: Bucket, seconds: float = _SECONDS) -> None:
        self.identity = identity(google_credentials(access))
        self._place = place
        self._patience = _patience(seconds)
        self._client = storage_client(access)
        self._bucket = self._client.bucket(place.name)
        self._name = f"gs://{place.name}"

    def granted(self, wanted: Collection[str]) -> frozenset[str]:
        """The ``wanted`` permissions that the bucket's policy grants for all of its objects."""
        with _answers(self._name):
            return frozenset(self._bucket.test_iam_permissions(sorted(wanted), **self._patience))

    def may_in(self, folder: str, permission: str) -> bool:
        """Whether a policy's condition grants a permission in a folder. It tries an object that does not exist, with a
        precondition that fails, so a permitted call changes nothing either."""
        name = f"{self._place.prefix}/{folder}" if self._place.prefix else folder
        blob = self._bucket.blob(f"{name}kbq-doctor-{uuid.uuid4().hex}")
        try:
            with _answers(f"{self._name}/{name}"):
                if permission == CREATE_OBJECTS:
                    blob.upload_from_string(b"", if_generation_match=1, **self._patience)
                else:
                    blob.delete(if_generation_match=1, **self._patience)
        except Refused:
            return False
        except (NotFound, api.PreconditionFailed):
            return True
        return True

    def location(self) -> tuple[str, tuple[str, ...]]:
        """The bucket's location, such as EU or EUROPE-WEST3, and the regions of a configurable dual-region."""
        with _answers(self._name):
            found = self._client.get_bucket(self._place.name, **self._patience)
            return str(found.location), tuple(found.data_locations or ())

    def safety(self) -> BucketReport:
        """Properties of the bucket that endanger staged data."""
        with _answers(self._name):
            return check_bucket(self._client, self._place.name, self._place.prefix)


class BigQueryQuestions:
    """Queries BigQuery as the loader. Raises ConfigurationError if there are no credentials."""

    def __init__(self, access: GoogleAccess, place: BigQueryProject, seconds: float = _SECONDS) -> None:
        self._client = bigquery_client(access, place)
        self._project, self._data = place.project, place.data_project
        self._patience = _patience(seconds)

    def job_identity(self) -> str:
        """The identity of jobs, from a dry run: this needs the same permission as a real query."""
        with _answers(f"project {self._project}"):
            dry = bigquery.QueryJobConfig(dry_run=True, use_query_cache=False)
            job = self._client.query("SELECT 1", job_config=dry, **self._patience, job_retry=None)
            return str(job.user_email or "")

    def dataset(self, name: str) -> DatasetFacts:
        """A dataset's location, such as EU or europe-west3, and the days after which its new tables expire."""
        with _answers(f"dataset {name}"):
            found = self._client.get_dataset(f"{self._data}.{name}", **self._patience)
        expiry = found.default_partition_expiration_ms or found.default_table_expiration_ms or 0
        return DatasetFacts(str(found.location), expiry / _DAY_MS)

    def may_list(self, dataset: str) -> bool:
        """Whether the dataset's tables can be listed."""
        try:
            with _answers(f"dataset {dataset}"):
                list(self._client.list_tables(f"{self._data}.{dataset}", max_results=1, **self._patience))
        except Refused:
            return False
        return True

    def table_permissions(self, dataset: str) -> frozenset[str]:
        """The granted permissions on the dataset's tables, of `TABLE_PERMISSIONS` and of setting policy tags. They are
        checked on a scratch table that is deleted again. Raises Refused if no table can be created."""
        scratch = bigquery.Table(f"{self._data}.{dataset}._kbq_doctor_{uuid.uuid4().hex}", [_COLUMN])
        scratch.expires = datetime.datetime.now(datetime.UTC) + _SCRATCH_LIFE
        with _answers(f"dataset {dataset}"):
            created = self._client.create_table(scratch, **self._patience)
        try:
            with _answers(str(created)):
                wanted = (*TABLE_PERMISSIONS, SET_CATEGORY)
                answer = self._client.test_iam_permissions(created, wanted, **self._patience)
        finally:
            self._drop(created)
        return frozenset(answer.get("permissions", ()))

    def _drop(self, table: bigquery.Table) -> None:
        try:
            self._client.delete_table(table, not_found_ok=True, **self._patience)
        except api.Forbidden:
            return  # the answer already shows it, and the table expires


_COLUMN: Final = bigquery.SchemaField("x", "INT64")


def _patience(seconds: float) -> dict[str, Any]:
    """The time limit of a call, including its retries."""
    return {"timeout": seconds, "retry": Retry(timeout=seconds)}


@contextmanager
def _answers(what: str) -> Iterator[None]:
    try:
        yield
    except api.PreconditionFailed:
        raise
    except api.Forbidden as error:
        raise Refused(f"{what}: {_first(error)}") from error
    except api.NotFound as error:
        raise NotFound(f"{what} does not exist") from error
    except (auth.TransportError, requests.RequestException) as error:
        raise Unavailable(
            f"{what}: {_first(error)}", next_step="try again; is the endpoint right?"
        ) from error
    except (auth.GoogleAuthError, api.Unauthorized) as error:
        raise ConfigurationError(
            f"{what}: the credentials are not accepted: {_first(error)}",
            next_step="check them; impersonating an account needs roles/iam.serviceAccountTokenCreator on it",
        ) from error
    except (api.GoogleAPIError, OSError, *UNREADABLE) as error:
        raise Unavailable(
            f"{what}: {_first(error)}", next_step="try again; is the endpoint right?"
        ) from error


def _first(error: BaseException) -> str:
    """The message of the root cause, without the request's URL. Other arguments are ignored: they may be whole
    responses."""
    if isinstance(error, api.RetryError) and error.cause is not None:
        error = error.cause
    while isinstance(error, requests.RequestException | urllib3.exceptions.HTTPError) and error.__context__:
        error = error.__context__
    text = str(error) if isinstance(error, OSError) or not error.args else str(error.args[0])
    return text.splitlines()[0] if text else type(error).__name__
