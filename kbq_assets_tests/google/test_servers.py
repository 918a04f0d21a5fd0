"""The servers as they are started: real clients reach them, and a killed one comes back with its data."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kbq_assets_tests.google.servers import BigQueryServer, GcsServer

pytestmark = pytest.mark.google


def test_the_storage_client_writes_reads_and_lists(gcs_server: GcsServer) -> None:
    bucket = gcs_server.client().bucket(gcs_server.new_bucket())
    bucket.blob("a/b c.txt").upload_from_string(b"text", if_generation_match=0)
    assert bucket.blob("a/b c.txt").download_as_bytes() == b"text"
    assert [blob.name for blob in bucket.list_blobs(prefix="a/")] == ["a/b c.txt"]


def test_the_query_client_sees_its_rows(bigquery_server: BigQueryServer) -> None:
    rows = bigquery_server.client().query("SELECT 1 AS one").result()
    assert [row.one for row in rows] == [1]


def test_a_dataset_that_many_create_at_once_is_there_for_all(bigquery_server: BigQueryServer) -> None:
    client, name = bigquery_server.client(), bigquery_server.new_dataset() + "_shared"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: client.create_dataset(name, exists_ok=True), range(8)))
    assert {dataset.dataset_id for dataset in made} == {name}
