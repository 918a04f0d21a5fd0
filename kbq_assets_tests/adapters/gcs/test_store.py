"""The store in a bucket keeps the contract, also after failed and missing responses."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import requests

from kbq_assets.adapters.gcs import open_gcs_store
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.core.errors import InvalidName, PreconditionFailed
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets_tests.adapters.gcs.cloud import UNIT, Cloud
from kbq_assets_tests.adapters.gcs.judge import PAGE
from kbq_assets_tests.contracts.object_store import Opener, SharedObjectStoreContract, paths, stream
from kbq_assets_tests.fixtures.variables import Variables
from kbq_assets_tests.google.faults import Request
from kbq_assets_tests.google.reverse_proxy import Reply

pytestmark = pytest.mark.google


class TestGcsObjectStore(SharedObjectStoreContract):
    rounds = 10
    many = 3 * PAGE + 1
    processes = 2

    @pytest.fixture
    def store(self, cloud: Cloud) -> ObjectStore:
        return cloud.opener()()

    @pytest.fixture
    def opener(self, cloud: Cloud) -> Opener:
        return cloud.opener()

    def fill(self, store: ObjectStore, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda name: store.create(name, b""), names))

    # Not the longest name: fake-gcs-server makes a file's name of it and adds to it.
    @pytest.mark.parametrize(
        "path", ["commits/.topic.json", "a/..b", "a b/%20 é#?", "x" * 230, "done/t@1.json"]
    )
    def test_odd_names_are_carried(self, store: ObjectStore, path: str) -> None:
        super().test_odd_names_are_carried(store, path)


# What is sent


def test_opening_a_store_sends_nothing() -> None:
    store = open_gcs_store("gs://bucket/a/b", GoogleAccess("anonymous", "http://127.0.0.1:1"))
    assert store.uri("staging/1-a/x.avro") == "gs://bucket/a/b/staging/1-a/x.avro"


def test_every_write_names_the_generation_it_expects(cloud: Cloud) -> None:
    generation = cloud.store.create("a", b"1")
    cloud.store.swap("a", b"2", generation)
    stream(cloud.store, "b", b"x" * UNIT)
    stream(cloud.store, "c", b"x" * (UNIT + 1))
    cloud.store.copy("a", "d")
    conditions = [
        (r.query.get("uploadType"), r.query["ifGenerationMatch"])
        for r in cloud.sent()
        if r.method in ("objects.insert", "objects.rewrite")
    ]
    expected = [("multipart", "0"), ("multipart", str(generation)), ("multipart", "0"), ("resumable", "0")]
    assert conditions == [*expected, (None, "0")]


def test_a_key_encrypts_every_object(cloud: Cloud) -> None:
    key = "projects/k/locations/us/keyRings/r/cryptoKeys/c"
    store = open_gcs_store(f"gs://{cloud.bucket}/kbq", GoogleAccess("anonymous", cloud.proxy.endpoint, key))
    cloud.proxy.requests.clear()
    generation = store.create("a", b"1")
    store.swap("a", b"2", generation)
    stream(store, "c", b"x" * (16 * UNIT + 1))
    store.copy("a", "d")
    written = [r for r in cloud.sent() if r.method in ("objects.insert", "objects.rewrite")]
    keys = [r.query.get("kmsKeyName") or r.query.get("destinationKmsKeyName") for r in written]
    assert keys == [key] * 4


def test_streamed_files_get_the_storage_class_and_state_does_not(cloud: Cloud) -> None:
    access = GoogleAccess("anonymous", cloud.proxy.endpoint, storage_class="NEARLINE")
    store = open_gcs_store(f"gs://{cloud.bucket}/kbq", access)
    store.swap("a", b"2", store.create("a", b"1"))
    stream(store, "b", b"x")
    # Of a longer file, only the beginning of its session has the class, which fake-gcs-server does not keep.
    objects = f"{cloud.proxy.endpoint}/storage/v1/b/{cloud.bucket}/o"
    classes = [requests.get(f"{objects}/kbq%2F{name}", timeout=60).json()["storageClass"] for name in "ab"]
    assert classes == ["STANDARD", "NEARLINE"]


def test_a_listing_asks_for_what_it_needs_only(cloud: Cloud) -> None:
    cloud.store.create("done/a", b"")
    assert paths(cloud.store, "done/", start_after="done/A") == ["done/a"]
    [request] = cloud.sent("objects.list")
    assert request.query == {
        "prefix": "kbq/done/",
        "startOffset": "kbq/done/A",
        "fields": "items(name,size,updated,generation),nextPageToken",
    }


@pytest.mark.parametrize("name", ["", "two\nlines", "a//b", "../b", "x" * 300])
def test_the_consoles_folders_and_names_that_no_operation_takes_are_no_objects(
    cloud: Cloud, name: str
) -> None:
    cloud.store.create("done/a", b"")

    def with_folder(request: Request, reply: Reply) -> Reply:
        document = reply.json()
        document["items"].insert(0, {**document["items"][0], "name": f"kbq/done/{name}"})
        return Reply.of_json(200, document)

    cloud.judge.tamper = with_folder
    assert paths(cloud.store, "done/") == ["done/a"]
    cloud.store.lists_every = True  # for batches of files
    assert paths(cloud.store, "done/") == [*filter(None, [name and f"done/{name}"]), "done/a"]


def test_a_path_that_is_too_long_with_its_prefix_is_refused(cloud: Cloud) -> None:
    path = "/".join(["x" * 200] * 5 + ["x" * 17])
    assert len(path) == 1022
    with pytest.raises(InvalidName, match="shorter prefix"):
        cloud.store.create(path, b"")


def test_many_threads_share_a_store(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    cloud.store.create("a", b"x")
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(32) as threads:
        read = list(threads.map(lambda _: cloud.store.get("a").data, range(200)))
    assert set(read) == {b"x"}
    assert caplog.messages == []  # urllib3 complains of a pool that is too small


def test_the_environments_proxy_is_used(cloud: Cloud, variables: Variables) -> None:
    variables["http_proxy"] = cloud.proxy.endpoint
    variables.pop("no_proxy", None)
    access = GoogleAccess("anonymous", "http://storage.kbq.invalid")
    open_gcs_store(f"gs://{cloud.bucket}/kbq", access).create("a", b"x")
    assert cloud.store.get("a").data == b"x"


def test_the_time_is_cloud_storages_alone(cloud: Cloud) -> None:
    cloud.judge.tamper = lambda _, reply: replace(reply, headers=(("Date", "Sun, 09 Sep 2001 01:46:40 GMT"),))
    assert cloud.store.now_ms() == 1_000_000_000_000


def test_a_swap_from_no_generation_creates_nothing(cloud: Cloud) -> None:
    with pytest.raises(PreconditionFailed):
        cloud.store.swap("a", b"x", 0)
    assert paths(cloud.store) == []
