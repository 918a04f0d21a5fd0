"""Rules that fake-gcs-server does not enforce and the proxy does, tested with the real client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed

from kbq_assets_tests.google.faults import Fault
from kbq_assets_tests.google.servers import GcsServer

pytestmark = pytest.mark.google


@pytest.fixture
def bucket(gcs_server: GcsServer) -> Iterator[Any]:
    yield gcs_server.client().bucket(gcs_server.new_bucket())
    gcs_server.faults.clear()
    gcs_server.denied.clear()


def written(bucket: Any, name: str, text: str = "text") -> Any:
    blob = bucket.blob(name)
    blob.upload_from_string(text)
    return blob


def test_a_bucket_that_is_not_there_is_named_as_such(gcs_server: GcsServer) -> None:
    absent = gcs_server.client().bucket("kbq-no-such-bucket")
    for look in (absent.reload, lambda: list(absent.list_blobs())):
        with pytest.raises(NotFound, match="specified bucket does not exist"):
            look()


def test_names_are_carried_as_they_are(bucket: Any) -> None:
    names = ["a b", "a%2Fb", "a/b/ü.avro", "a?x=1&y", "a+b#c"]
    for name in names:
        written(bucket, name, name)
    assert sorted(blob.name for blob in bucket.list_blobs()) == sorted(names)
    assert [bucket.blob(name).download_as_text() for name in names] == names


@pytest.mark.parametrize(
    "change",
    [
        lambda bucket, stale: bucket.blob("a").delete(if_generation_match=stale),
        lambda bucket, stale: bucket.blob("b").rewrite(bucket.blob("a"), if_source_generation_match=stale),
        lambda bucket, stale: bucket.blob("a").rewrite(bucket.blob("a"), if_generation_match=stale),
        lambda bucket, stale: bucket.copy_blob(bucket.blob("a"), bucket, "a", if_generation_match=0),
        lambda bucket, stale: bucket.blob("a").upload_from_string("new", if_generation_match=stale),
        lambda bucket, stale: bucket.blob("a").upload_from_string("new", if_generation_match=0),
    ],
)
def test_a_precondition_that_does_not_hold_changes_nothing(
    bucket: Any, change: Callable[[Any, int], object]
) -> None:
    stale = written(bucket, "a", "first").generation
    present = written(bucket, "a", "second").generation
    with pytest.raises(PreconditionFailed):
        change(bucket, stale)
    assert [(blob.name, blob.generation) for blob in bucket.list_blobs()] == [("a", present)]


def test_preconditions_that_hold_let_it_happen(bucket: Any) -> None:
    first = written(bucket, "a", "first").generation
    bucket.blob("b").rewrite(bucket.blob("a"), if_generation_match=0, if_source_generation_match=first)
    bucket.blob("a").delete(if_generation_match=first)
    assert [blob.name for blob in bucket.list_blobs()] == ["b"]


def test_of_many_swaps_from_one_generation_one_wins(bucket: Any) -> None:
    generation = written(bucket, "a").generation

    def swap(number: int) -> bool:
        try:
            bucket.blob("a").upload_from_string(str(number), if_generation_match=generation)
        except PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(swap, range(24))) == 1


def test_a_resumable_upload_goes_through_the_proxy(bucket: Any, gcs_server: GcsServer) -> None:
    gcs_server.requests.clear()
    blob = bucket.blob("big", chunk_size=256 * 1024)
    with blob.open("wb", if_generation_match=0, ignore_flush=True) as stream:
        for _ in range(5):
            stream.write(b"x" * 200_000)
    assert len(bucket.blob("big").download_as_bytes()) == 1_000_000
    assert len(gcs_server.requested("objects.upload_chunk")) == 4


def test_a_bucket_is_what_the_test_makes_of_it(bucket: Any, gcs_server: GcsServer) -> None:
    bucket.add_lifecycle_delete_rule(age=3)
    bucket.iam_configuration.public_access_prevention = "enforced"
    bucket.patch()
    policy = bucket.get_iam_policy()
    policy.bindings.append({"role": "roles/storage.objectViewer", "members": {"allUsers"}})
    bucket.set_iam_policy(policy)
    again = gcs_server.client().get_bucket(bucket.name)
    assert [rule["condition"]["age"] for rule in again.lifecycle_rules] == [3]
    assert again.iam_configuration.public_access_prevention == "enforced"
    assert again.get_iam_policy()["roles/storage.objectViewer"] == {"allUsers"}


def test_a_permission_that_is_taken_away_is_missed(bucket: Any, gcs_server: GcsServer) -> None:
    gcs_server.denied.add("storage.objects.list")
    with pytest.raises(Forbidden, match=r"storage\.objects\.list"):
        list(bucket.list_blobs())
    asked = ["storage.objects.list", "storage.objects.get"]
    assert bucket.test_iam_permissions(asked) == ["storage.objects.get"]


def test_a_fault_strikes_only_what_it_is_meant_for(bucket: Any, gcs_server: GcsServer) -> None:
    gcs_server.faults.add(Fault("objects.insert", "412", when=lambda request: request.body_size > 1000))
    written(bucket, "small")
    with pytest.raises(PreconditionFailed):
        written(bucket, "large", "x" * 2000)
    written(bucket, "large again", "x" * 2000)
    assert [blob.name for blob in bucket.list_blobs()] == ["large again", "small"]
