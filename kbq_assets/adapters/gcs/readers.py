"""Read access to objects in Cloud Storage (`ports.readers`): conditions by prefix in a bucket's policy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import requests
from google.cloud.storage import Client

from kbq_assets.adapters.gcs.calls import PAUSES, Call, Calls, document, listed, texts
from kbq_assets.adapters.gcs.errors import Intent
from kbq_assets.core.catalog.readers import GrantReading, ReadablePlace, normal_member
from kbq_assets.core.config.google_permissions import (
    GET_BUCKET,
    GET_BUCKET_POLICY,
    READER_BUCKET_ROLE,
    SET_BUCKET_POLICY,
)
from kbq_assets.core.errors import ConfigurationError, PreconditionFailed, Unavailable

#: Attempts to grant while others change the policy.
_UPDATES: Final = 10
#: Roles that may read every object of a bucket.
_READING: Final = frozenset({READER_BUCKET_ROLE, "roles/storage.objectUser", "roles/storage.objectAdmin"})
_TITLE: Final = "kbq-readers"
#: Policies with conditions have this version. A request for another version would fail, or lose the conditions.
_VERSION: Final = 3


class BucketReaders:
    """Reads and extends the policies of buckets."""

    def __init__(self, client: Client, pauses: Sequence[float] = PAUSES) -> None:
        self._calls = Calls(client, pauses)

    def readers(self, place: ReadablePlace) -> frozenset[str]:
        """Members who may read all objects of the prefix."""
        return frozenset(_readers(self._policy(place.owner), place))

    def grant(self, change: GrantReading) -> None:
        """Add the members to the condition of the prefix. The etag of the read policy protects changes by others."""
        bucket = change.place.owner
        self._require_uniform(bucket)
        for _ in range(_UPDATES):
            policy = self._policy(bucket)
            present = {*_readers(policy, change.place)}
            missing = [member for member in change.members if member not in present]
            if not missing or self._replace(bucket, _with(policy, change.place, missing)):
                return
        raise Unavailable(f"gs://{bucket}: others keep changing its policy", next_step="apply again later")

    def _policy(self, bucket: str) -> dict[str, Any]:
        intent = Intent("read the policy of", f"gs://{bucket}", GET_BUCKET_POLICY)
        url, version = f"{self._calls.bucket_url(bucket)}/iam", {"optionsRequestedPolicyVersion": _VERSION}
        return self._calls.parsed(Call(intent, "GET", url, version), _checked)

    def _replace(self, bucket: str, policy: Mapping[str, Any]) -> bool:
        """Whether the policy was replaced; False if it changed in the meantime."""
        intent = Intent("change the policy of", f"gs://{bucket}", SET_BUCKET_POLICY)

        def read(response: requests.Response) -> bool:
            return response.status_code != 409 and bool(document(intent, response))

        url, headers = f"{self._calls.bucket_url(bucket)}/iam", {"Content-Type": "application/json"}
        body = json.dumps(policy).encode()
        try:
            # The retry of a request that was applied has an old etag. Then the policy is read again.
            return self._calls.send(
                Call(intent, "PUT", url, headers=headers, body=body, accepts=frozenset({409})), read
            )
        except PreconditionFailed:
            return False

    def _require_uniform(self, bucket: str) -> None:
        """Raise ConfigurationError if the bucket's policy does not support conditions."""
        intent = Intent("read", f"gs://{bucket}", GET_BUCKET)
        call = Call(intent, "GET", self._calls.bucket_url(bucket))
        if not self._calls.parsed(call, _is_uniform):
            raise ConfigurationError(
                f"gs://{bucket} uses access lists per object, so its policy does not support conditions by prefix",
                next_step=f"gcloud storage buckets update gs://{bucket} --uniform-bucket-level-access",
            )


def _is_uniform(metadata: Mapping[str, Any]) -> bool:
    return bool(metadata.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {}).get("enabled"))


def _checked(policy: dict[str, Any]) -> dict[str, Any]:
    """The policy, which is written again with more members. Raises TypeError or AttributeError for another shape."""
    for binding in listed(policy.get("bindings", [])):
        texts(binding.get("members", []))
        (binding.get("condition") or {}).get("expression")
    return policy


def _expression(bucket: str, prefix: str) -> str:
    """The condition for a prefix. It includes the bucket, because programs must list it to find files."""
    whole = f"projects/_/buckets/{bucket}"
    return f'resource.name == "{whole}" || resource.name.startsWith("{whole}/objects/{prefix}")'


def _readers(policy: Mapping[str, Any], place: ReadablePlace) -> Iterator[str]:
    """Members who may read the whole bucket, or a prefix that includes the place's prefix."""
    for binding in policy.get("bindings", ()):
        if binding.get("role") in _READING and _holds(binding.get("condition"), place):
            yield from map(normal_member, binding.get("members", ()))


def _holds(condition: Mapping[str, Any] | None, place: ReadablePlace) -> bool:
    if condition is None:
        return True
    matched = re.search(r'/objects/([^"]*)"\)\Z', str(condition.get("expression")))
    is_ours = matched is not None and condition["expression"] == _expression(place.owner, matched[1])
    return is_ours and matched is not None and place.name.startswith(matched[1])


def _with(policy: Mapping[str, Any], place: ReadablePlace, members: Sequence[str]) -> dict[str, Any]:
    """The policy with more members for a prefix."""
    expression, bindings = _expression(place.owner, place.name), list(policy.get("bindings", ()))
    for at, each in enumerate(bindings):
        if (
            each.get("role") == READER_BUCKET_ROLE
            and (each.get("condition") or {}).get("expression") == expression
        ):
            bindings[at] = {**each, "members": [*each.get("members", ()), *members]}
            break
    else:
        condition = {"title": _TITLE, "expression": expression}
        bindings.append({"role": READER_BUCKET_ROLE, "members": list(members), "condition": condition})
    return {**policy, "version": _VERSION, "bindings": bindings}
