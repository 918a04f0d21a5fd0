"""In a bucket with object versioning, deleted and replaced objects stay as noncurrent versions."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from kbq_assets.adapters.gcs import open_gcs_store
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.core.errors import PreconditionFailed
from kbq_assets.pipelines.filebatches.source_objects import FileSource
from kbq_assets_tests.google.install import Program
from kbq_assets_tests.google.servers import run_gcs

pytestmark = pytest.mark.google
SUCCESS, FILE = "shop/orders/1/_SUCCESS", "shop/orders/1/a.csv"


def test_a_batch_has_the_current_generations_or_is_none(gcs_program: Program, tmp_path: Path) -> None:
    with run_gcs(gcs_program, tmp_path, keeps_versions=True) as server:
        bucket = server.client().bucket("arrivals")
        bucket.versioning_enabled = True
        server.client().create_bucket(bucket)
        store = open_gcs_store("gs://arrivals", GoogleAccess("anonymous", server.endpoint))
        source = FileSource(store, "_SUCCESS", frozenset({"_SUCCESS"}))
        old = store.create(FILE, b"old")
        first = store.create(SUCCESS, b"")
        assert source.listing().batches["shop/orders/1"].generation == first
        store.delete(SUCCESS)
        assert not source.listing().batches
        new = store.swap(FILE, b"newer", old)
        second = store.create(SUCCESS, b"")
        kept = requests.get(f"{server.endpoint}/storage/v1/b/arrivals/o?versions=true", timeout=30).json()
        assert {int(each["generation"]) for each in kept["items"]} == {old, new, first, second}
        listing = source.listing()
        [batch] = listing.batches.values()
        found = source.files(batch, listing)
        assert batch.generation == second != first and found is not None
        assert [(each.path, each.generation) for each in found.files] == [(FILE, new)]
        assert source.current(batch.path, [FILE, SUCCESS]) == {FILE: new, SUCCESS: second}
        assert store.get(FILE).data == b"newer"
        with pytest.raises(PreconditionFailed):
            store.swap(SUCCESS, b"", first)
