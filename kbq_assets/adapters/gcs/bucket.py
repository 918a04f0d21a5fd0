"""Checks that a bucket is safe for staging: it is private, and only KBQ deletes or changes its objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import requests
from google.cloud.storage import Client

from kbq_assets.adapters.gcs.calls import PAUSES, Call, Calls, document, listed, shaped, texts
from kbq_assets.adapters.gcs.errors import Intent, refusal
from kbq_assets.core.config.google_permissions import is_regional
from kbq_assets.core.errors import ConfigurationError, NotFound

_EVERYBODY: Final = frozenset({"allUsers", "allAuthenticatedUsers"})
#: Conditions of rules that apply only to noncurrent versions, never to KBQ's objects.
_NONCURRENT: Final = frozenset({"numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore"})
_HARMLESS_CLASSES: Final = frozenset({"STANDARD", "NEARLINE", "COLDLINE"})


@dataclass(frozen=True)
class BucketReport:
    """Sentences for operators: why a bucket is not safe, what could not be checked or should be improved, and what
    makes it more expensive than necessary."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    costs: tuple[str, ...] = ()


@dataclass(frozen=True)
class BucketFacts:
    """A bucket's metadata, its policy, and the default access list of new objects, as Cloud Storage's JSON.

    None means that a part could not be read or does not apply. ``unseen`` has sentences that say why.
    """

    metadata: Mapping[str, Any] | None
    policy: Mapping[str, Any] | None = None
    default_access: Mapping[str, Any] | None = None
    unseen: tuple[str, ...] = ()


def check_bucket(client: Client, bucket: str, prefix: str) -> BucketReport:
    """The report on a bucket. Parts that this client may not read become warnings.

    Raises ConfigurationError if there is no such bucket, or Unavailable.
    """
    with shaped(Intent("read", f"gs://{bucket}", "storage.buckets.get")):
        return judge_bucket(read_facts(Calls(client, PAUSES), bucket), prefix)


def require_safe_bucket(client: Client, bucket: str, prefix: str) -> tuple[str, ...]:
    """Warnings about a bucket. Raises ConfigurationError if it is not safe for staging, or Unavailable."""
    report = check_bucket(client, bucket, prefix)
    if report.problems:
        raise ConfigurationError(
            f"gs://{bucket} is not safe for staging: {'; '.join(report.problems)}",
            next_step="fix the bucket, then see `kbq doctor --gcp`",
        )
    return tuple(f"gs://{bucket}: {warning}" for warning in report.warnings)


def read_facts(calls: Calls, bucket: str) -> BucketFacts:
    """The parts of a bucket's configuration that this client may read. Raises ConfigurationError if there is no such
    bucket, or Unavailable."""
    unseen: list[str] = []

    def read_part(part: str, permission: str) -> dict[str, Any] | None:
        intent = Intent(f"read{part.replace('/', ' ')}", f"gs://{bucket}", permission)

        def read(response: requests.Response) -> dict[str, Any] | None:
            if response.ok:
                return document(intent, response)
            error = refusal(intent, response.status_code, response.text)
            if isinstance(error, NotFound):  # the bucket exists: the endpoint lacks this call
                unseen.append(f"not checked: {intent}: the endpoint does not support this call")
            else:
                unseen.append(f"not checked: {error.message}; {error.next_step}")
            return None

        url = calls.bucket_url(bucket) + part
        return calls.send(Call(intent, "GET", url, accepts=frozenset({403, 404} if part else {403})), read)

    metadata = read_part("", "storage.buckets.get")
    policy = read_part("/iam", "storage.buckets.getIamPolicy")
    uniform = metadata is not None and _uniform(metadata)
    default_access = None if uniform else read_part("/defaultObjectAcl", "storage.buckets.getIamPolicy")
    return BucketFacts(metadata, policy, default_access, tuple(unseen))


def judge_bucket(facts: BucketFacts, prefix: str) -> BucketReport:
    """The report on objects below a prefix."""
    metadata = facts.metadata or {}
    under = f"{prefix}/" if prefix else ""
    problems = [*_rewriting_rules(metadata, under), *_freezes(metadata), *_charges(metadata)]
    warnings = list(facts.unseen)
    if _prevention(metadata) != "enforced":
        problems += _public(facts)
        if facts.metadata is not None:
            name = metadata.get("name", "BUCKET")
            warnings.append(
                "public access prevention is not enforced: "
                f"gcloud storage buckets update gs://{name} --public-access-prevention"
            )
    return BucketReport(tuple(problems), tuple(warnings), tuple(_costs(metadata)))


def _public(facts: BucketFacts) -> Iterator[str]:
    for binding in listed((facts.policy or {}).get("bindings", [])):
        for member in sorted(_EVERYBODY & set(texts(binding.get("members", [])))):
            yield f"{member} has {binding.get('role')}: remove this role, staged data must not be public"
    for entry in listed((facts.default_access or {}).get("items", [])):
        if entry.get("entity") in _EVERYBODY:
            yield f"{entry['entity']} may read every new object: change the default object access list"


def _rewriting_rules(metadata: Mapping[str, Any], under: str) -> Iterator[str]:
    """Lifecycle rules that delete or archive objects below a prefix."""
    for rule in listed(metadata.get("lifecycle", {}).get("rule", [])):
        action, condition = rule.get("action", {}), rule.get("condition", {})
        if not _is_harmful(action) or not _touches(condition, under):
            continue
        what = f"{action.get('type')} {action.get('storageClass', '')}".rstrip()
        yield (
            f"a lifecycle rule ({what}, {_condition_text(condition)}) applies to objects under gs://…/{under}: "
            "exclude this prefix from it, or use another bucket"
        )


def _is_harmful(action: Mapping[str, Any]) -> bool:
    kind = action.get("type")
    return kind == "Delete" or (
        kind == "SetStorageClass" and action.get("storageClass") not in _HARMLESS_CLASSES
    )


def _touches(condition: Mapping[str, Any], under: str) -> bool:
    """Whether a rule may apply to live objects below a prefix. Any suffix or age may match."""
    if condition.get("isLive") is False or _NONCURRENT & condition.keys():
        return False
    prefixes = texts(condition.get("matchesPrefix") or [""])
    return any(under.startswith(prefix) or prefix.startswith(under) for prefix in prefixes)


def _freezes(metadata: Mapping[str, Any]) -> Iterator[str]:
    retention = metadata.get("retentionPolicy")
    if retention:
        locked = ", locked" if retention.get("isLocked") else ""
        yield (
            f"a retention policy ({retention.get('retentionPeriod')} s{locked}) prevents KBQ "
            "from replacing and deleting objects: remove it, or use another bucket"
        )
    if metadata.get("defaultEventBasedHold"):
        yield "new objects are put on hold (default event-based hold): turn it off"


def _charges(metadata: Mapping[str, Any]) -> Iterator[str]:
    if metadata.get("billing", {}).get("requesterPays"):
        yield "requester pays is on, but load jobs and this client do not support it: turn it off"


def _costs(metadata: Mapping[str, Any]) -> Iterator[str]:
    name, location = metadata.get("name", "BUCKET"), str(metadata.get("location", ""))
    kept = int(metadata.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
    if kept:
        yield (
            f"soft delete stores and bills each deleted file and each replaced state for {kept / 86_400:g} days: "
            f"gcloud storage buckets update gs://{name} --clear-soft-delete"
        )
    if location and not is_regional(location, data_regions(metadata)):
        yield (
            f"{location} is not a single region: writes cost twice as much (0.01 USD per 1,000, list price of 2026-11),"
            " and replication costs 0.02 USD per GiB written. A regional bucket works just as well for loads"
        )


def data_regions(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The regions of a configurable dual-region; () for any other bucket."""
    return tuple(texts(metadata.get("customPlacementConfig", {}).get("dataLocations", [])))


def _uniform(metadata: Mapping[str, Any]) -> bool:
    uniform = metadata.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {})
    return bool(uniform.get("enabled"))


def _prevention(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("iamConfiguration", {}).get("publicAccessPrevention", "inherited"))


def _condition_text(condition: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(condition.items())) or "always"
