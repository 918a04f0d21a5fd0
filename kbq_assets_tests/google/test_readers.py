"""Google's clients grant members read access, and nobody loses access."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from kbq_assets.adapters.bigquery.readers import BigQueryReaders
from kbq_assets.adapters.gcs.readers import BucketReaders
from kbq_assets.core.catalog.readers import OBJECTS, GrantReading, ReadablePlace
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.ports.readers import Readers
from kbq_assets_tests.adapters.gcs.cloud import NO_PAUSES, anonymous_client
from kbq_assets_tests.contracts.readers import ANA, BI, COPIES, ORDERS, SALES, SHOP, ReadersContract
from kbq_assets_tests.fakes.serving import serving
from kbq_assets_tests.google.policy_server import BUCKET, DATASET, TABLE, PolicyServer

PLACES = [SHOP, ORDERS, COPIES]
VIEW = {"view": {"projectId": "p", "datasetId": "d", "tableId": "v"}}
EXPIRING = {"expression": "request.time < timestamp('2030-01-01T00:00:00Z')", "title": "soon"}


class GoogleReaders:
    """Both adapters, by the kind of a place."""

    def __init__(self, endpoint: str) -> None:
        client = bigquery.Client("p", AnonymousCredentials(), client_options={"api_endpoint": endpoint})
        self._tables = BigQueryReaders(client)
        self._objects = BucketReaders(anonymous_client(endpoint), NO_PAUSES)

    def readers(self, place: ReadablePlace) -> frozenset[str] | None:
        return self._of(place).readers(place)

    def grant(self, change: GrantReading) -> None:
        self._of(change.place).grant(change)

    def _of(self, place: ReadablePlace) -> Readers:
        return self._objects if place.kind == OBJECTS else self._tables


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    server = PolicyServer()
    with serving(server):
        yield server


@pytest.fixture
def readers(server: PolicyServer) -> GoogleReaders:
    return GoogleReaders(server.endpoint)


class TestGoogleReaders(ReadersContract):
    pass


def test_a_dataset_gets_entries_beside_all_others(server: PolicyServer, readers: GoogleReaders) -> None:
    others: list[dict[str, Any]] = [
        VIEW,
        {"role": "OWNER", "userByEmail": "Boss@Example.com"},
        {"role": "READER", "userByEmail": "temp@example.com", "condition": EXPIRING},
        {"role": "roles/bigquery.metadataViewer", "groupByEmail": "sales@example.com"},
    ]
    server.documents[DATASET]["access"] = [*others]
    assert readers.readers(SHOP) == frozenset({"user:boss@example.com"})
    readers.grant(GrantReading(SHOP, (ANA, SALES, BI)))
    assert server.documents[DATASET]["access"] == [
        *others,
        {"role": "READER", "userByEmail": "ana@example.com"},
        {"role": "READER", "groupByEmail": "sales@example.com"},
        {"role": "READER", "userByEmail": "bi@p.iam.gserviceaccount.com"},
    ]
    assert server.documents[DATASET]["labels"] == {"a": "b"}


def test_a_table_gets_members_beside_all_others(server: PolicyServer, readers: GoogleReaders) -> None:
    others: list[dict[str, Any]] = [
        {"role": "roles/bigquery.dataViewer", "members": ["user:temp@example.com"], "condition": EXPIRING},
        {"role": "roles/bigquery.dataOwner", "members": ["user:boss@example.com"]},
    ]
    server.documents[TABLE]["bindings"] = [*others]
    assert readers.readers(ORDERS) == frozenset({"user:boss@example.com"})
    readers.grant(GrantReading(ORDERS, (ANA,)))
    readers.grant(GrantReading(ORDERS, (SALES,)))
    assert server.documents[TABLE]["bindings"] == [
        *others,
        {"role": "roles/bigquery.dataViewer", "members": [ANA, SALES]},
    ]


def test_a_bucket_gets_one_condition_for_each_prefix(server: PolicyServer, readers: GoogleReaders) -> None:
    others: list[dict[str, Any]] = [
        {"role": "roles/storage.objectViewer", "members": ["user:all@example.com"]},
        {"role": "roles/storage.objectViewer", "members": ["user:temp@example.com"], "condition": EXPIRING},
        {"role": "roles/storage.legacyBucketReader", "members": [SALES]},
    ]
    server.documents[BUCKET]["bindings"] = [*others]
    assert readers.readers(COPIES) == frozenset({"user:all@example.com"})
    readers.grant(GrantReading(COPIES, (ANA,)))
    readers.grant(GrantReading(COPIES, (SALES,)))
    condition = {
        "title": "kbq-readers",
        "expression": 'resource.name == "projects/_/buckets/b" || '
        'resource.name.startsWith("projects/_/buckets/b/objects/kbq/backup/")',
    }
    assert server.documents[BUCKET]["bindings"] == [
        *others,
        {"role": "roles/storage.objectViewer", "members": [ANA, SALES], "condition": condition},
    ]
    assert server.documents[BUCKET]["version"] == 3


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.kind)
def test_a_grant_outlasts_changes_by_others(
    server: PolicyServer, readers: GoogleReaders, place: ReadablePlace
) -> None:
    server.rivals = 3
    readers.grant(GrantReading(place, (ANA,)))
    assert readers.readers(place) == frozenset({ANA})
    assert server.changes == 1


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.kind)
def test_a_grant_gives_up_where_others_never_stop(
    server: PolicyServer, readers: GoogleReaders, place: ReadablePlace
) -> None:
    server.rivals = 1000
    with pytest.raises(Unavailable, match="others keep changing"):
        readers.grant(GrantReading(place, (ANA,)))
    assert server.changes == 0


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.kind)
def test_a_grant_whose_answer_is_lost_is_made_once(
    server: PolicyServer, readers: GoogleReaders, place: ReadablePlace
) -> None:
    server.lost = 1
    readers.grant(GrantReading(place, (ANA,)))
    assert readers.readers(place) == frozenset({ANA})
    assert server.changes == 1


def test_a_bucket_with_access_lists_is_refused(server: PolicyServer, readers: GoogleReaders) -> None:
    server.uniform = False
    with pytest.raises(ConfigurationError, match="does not support conditions by prefix") as refused:
        readers.grant(GrantReading(COPIES, (ANA,)))
    assert "--uniform-bucket-level-access" in refused.value.next_step
    assert server.changes == 0


def test_a_dataset_whose_list_is_hidden_is_left_alone(server: PolicyServer, readers: GoogleReaders) -> None:
    del server.documents[DATASET]["access"]
    with pytest.raises(ConfigurationError, match="may not see its access list") as refused:
        readers.grant(GrantReading(SHOP, (ANA,)))
    assert "bigquery.datasets.getIamPolicy" in refused.value.next_step
    assert server.changes == 0
