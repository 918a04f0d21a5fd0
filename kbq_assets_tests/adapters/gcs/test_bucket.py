"""A bucket is reported if staged data would be public, vanish, freeze, or cost others money."""

from __future__ import annotations

from typing import Any

import pytest

from kbq_assets.adapters.gcs import check_bucket
from kbq_assets.adapters.gcs.bucket import BucketFacts, judge_bucket
from kbq_assets.core.errors import KbqError, Unavailable
from kbq_assets_tests.adapters.gcs.cloud import Cloud, anonymous_client
from kbq_assets_tests.google.faults import Request
from kbq_assets_tests.google.reverse_proxy import Reply

SAFE: dict[str, Any] = {
    "iamConfiguration": {
        "publicAccessPrevention": "enforced",
        "uniformBucketLevelAccess": {"enabled": True},
    }
}
DELETE = {"type": "Delete"}


def problems(metadata: dict[str, Any], prefix: str = "kbq") -> tuple[str, ...]:
    return judge_bucket(BucketFacts({**SAFE, **metadata}), prefix).problems


def rule(action: dict[str, Any], **condition: Any) -> dict[str, Any]:
    return {"lifecycle": {"rule": [{"action": action, "condition": condition}]}}


def test_a_private_bucket_without_rules_is_fit() -> None:
    report = judge_bucket(BucketFacts(SAFE, {"bindings": []}), "kbq")
    assert (report.problems, report.warnings) == ((), ())


@pytest.mark.parametrize(
    ("prefix", "metadata"),
    [
        ("kbq", rule(DELETE, age=30)),
        ("", rule(DELETE, age=30, matchesPrefix=["other/"])),
        ("kbq", rule(DELETE, age=30, matchesPrefix=["other/", "kbq/staging/"])),
        ("kbq/eu", rule(DELETE, age=30, matchesPrefix=["kbq/"])),
        ("kbq", rule(DELETE, isLive=True)),
        ("kbq", rule(DELETE)),
        ("kbq", rule({"type": "SetStorageClass", "storageClass": "ARCHIVE"}, age=365)),
    ],
)
def test_a_rule_that_deletes_or_archives_staged_objects_is_a_problem(
    prefix: str, metadata: dict[str, Any]
) -> None:
    [problem] = problems(metadata, prefix)
    assert "lifecycle rule" in problem


@pytest.mark.parametrize(
    ("prefix", "metadata"),
    [
        ("kbq", rule(DELETE, age=30, matchesPrefix=["other/"])),
        ("kbq", rule(DELETE, age=30, matchesPrefix=["kbq2/", "kb/"])),
        ("kbq", rule(DELETE, isLive=False, age=7)),
        ("kbq", rule(DELETE, numNewerVersions=3)),
        ("kbq", rule(DELETE, daysSinceNoncurrentTime=3)),
        ("kbq", rule({"type": "AbortIncompleteMultipartUpload"}, age=7)),
        ("kbq", rule({"type": "SetStorageClass", "storageClass": "NEARLINE"}, age=30)),
    ],
)
def test_a_rule_that_never_touches_staged_objects_is_none(prefix: str, metadata: dict[str, Any]) -> None:
    assert problems(metadata, prefix) == ()


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"retentionPolicy": {"retentionPeriod": "86400", "isLocked": True}}, "86400 s, locked"),
        ({"defaultEventBasedHold": True}, "event-based hold"),
        ({"billing": {"requesterPays": True}}, "requester pays"),
    ],
)
def test_what_freezes_or_charges_objects_is_a_problem(metadata: dict[str, Any], named: str) -> None:
    [problem] = problems(metadata)
    assert named in problem


@pytest.mark.parametrize("member", ["allUsers", "allAuthenticatedUsers"])
def test_a_public_bucket_is_a_problem(member: str) -> None:
    policy = {"bindings": [{"role": "roles/storage.objectViewer", "members": ["user:a@b.c", member]}]}
    report = judge_bucket(BucketFacts({}, policy), "kbq")
    [problem] = report.problems
    assert f"{member} has roles/storage.objectViewer" in problem


def test_objects_that_will_be_public_are_a_problem() -> None:
    access = {"items": [{"entity": "allUsers", "role": "READER"}, {"entity": "project-owners-1"}]}
    [problem] = judge_bucket(BucketFacts({}, {}, access), "kbq").problems
    assert "every new object" in problem


def test_enforced_prevention_outweighs_a_public_policy() -> None:
    policy = {"bindings": [{"role": "roles/storage.objectViewer", "members": ["allUsers"]}]}
    assert judge_bucket(BucketFacts(SAFE, policy), "kbq").problems == ()


def test_prevention_that_is_not_enforced_is_a_warning() -> None:
    report = judge_bucket(BucketFacts({}, {"bindings": []}), "kbq")
    [warning] = report.warnings
    assert report.problems == ()
    assert "--public-access-prevention" in warning


def test_what_makes_a_bucket_cost_more_is_reported_with_its_command() -> None:
    kept = {"name": "b", "location": "EU", "softDeletePolicy": {"retentionDurationSeconds": "604800"}}
    soft, place = judge_bucket(BucketFacts({**SAFE, **kept}), "kbq").costs
    assert "for 7 days: gcloud storage buckets update gs://b --clear-soft-delete" in soft
    assert "twice as much" in place
    off = {"location": "EUROPE-WEST3", "softDeletePolicy": {"retentionDurationSeconds": "0"}}
    assert judge_bucket(BucketFacts({**SAFE, **off}), "kbq").costs == ()


@pytest.mark.google
def test_a_bucket_is_inspected(cloud: Cloud) -> None:
    def public(request: Request, reply: Reply) -> Reply:
        document = reply.json() if reply.status == 200 else None
        if request.method == "buckets.getIamPolicy":
            return Reply.of_json(200, {"bindings": [{"role": "r", "members": ["allUsers"]}]})
        return Reply.of_json(200, {**(document or {}), "defaultEventBasedHold": True, "items": []})

    cloud.judge.tamper = public
    report = check_bucket(anonymous_client(cloud.proxy.endpoint), cloud.bucket, "kbq")
    assert len(report.problems) == 2
    looked = [request.path.removeprefix(f"/storage/v1/b/{cloud.bucket}") for request in cloud.sent()]
    assert looked == ["", "/iam", "/defaultObjectAcl"]


@pytest.mark.google
def test_a_missing_permission_to_list_is_a_warning_that_names_it(cloud: Cloud) -> None:
    cloud.strike("buckets.get", "403")
    cloud.strike("buckets.getIamPolicy", "403")
    report = check_bucket(anonymous_client(cloud.proxy.endpoint), cloud.bucket, "kbq")
    assert report.problems == ()
    metadata, policy = report.warnings[:2]
    assert f"grant storage.buckets.get on gs://{cloud.bucket}" in metadata
    assert f"grant storage.buckets.getIamPolicy on gs://{cloud.bucket}" in policy


@pytest.mark.google
def test_what_an_endpoint_does_not_offer_is_a_warning_and_not_a_missing_bucket(cloud: Cloud) -> None:
    cloud.strike("buckets.getIamPolicy", "404")
    warnings = check_bucket(anonymous_client(cloud.proxy.endpoint), cloud.bucket, "kbq").warnings
    policy = f"not checked: read iam gs://{cloud.bucket}: the endpoint does not support this call"
    assert policy in warnings
    assert not any("does not exist" in warning for warning in warnings)
    assert f"gcloud storage buckets update gs://{cloud.bucket} --public" in warnings[-1]


@pytest.mark.google
def test_a_bucket_that_is_not_there_is_no_warning(cloud: Cloud) -> None:
    with pytest.raises(KbqError):
        check_bucket(anonymous_client(cloud.proxy.endpoint), "kbq-no-such-bucket", "kbq")


ODD: list[dict[str, Any]] = [
    {"iamConfiguration": []},
    {"iamConfiguration": {"uniformBucketLevelAccess": "on"}},
    {"lifecycle": "none"},
    {"lifecycle": {"rule": {"action": "Delete"}}},
    {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"matchesPrefix": "kbq/"}}]}},
    {"retentionPolicy": "locked"},
    {"billing": "requesterPays"},
    {"softDeletePolicy": {"retentionDurationSeconds": []}},
    {"softDeletePolicy": {"retentionDurationSeconds": "long"}},
    {"location": "EU", "customPlacementConfig": {"dataLocations": "EU"}},
    {"bindings": {"role": "r"}},
    {"bindings": [{"role": "r", "members": "allUsers"}]},
    {"items": [5]},
]


@pytest.mark.google
@pytest.mark.parametrize("odd", ODD, ids=str)
def test_a_report_of_another_shape_is_no_answer(cloud: Cloud, odd: dict[str, Any]) -> None:
    cloud.judge.tamper = lambda request, reply: Reply.of_json(
        200, (reply.status == 200 and reply.json(), odd)[1]
    )
    with pytest.raises(Unavailable, match="not Cloud Storage's"):
        check_bucket(anonymous_client(cloud.proxy.endpoint), cloud.bucket, "kbq")
