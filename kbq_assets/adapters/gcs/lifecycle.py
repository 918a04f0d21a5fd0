"""Lifecycle rules of Cloud Storage's buckets (`ports.lifecycle`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.cloud.storage import Client

from kbq_assets.adapters.gcs.calls import PAUSES, Call, Calls
from kbq_assets.adapters.gcs.errors import Intent
from kbq_assets.core.catalog.lifecycle import SetTransitions, Transition


class GcsLifecycles:
    """Reads and changes the rules of buckets."""

    def __init__(self, client: Client, pauses: Sequence[float] = PAUSES) -> None:
        self._calls = Calls(client, pauses)

    def transitions(self, bucket: str) -> tuple[Transition, ...]:
        return tuple(found for rule in _rules(self._read(bucket)) if (found := _transition(bucket, rule)))

    def change(self, change: SetTransitions) -> None:
        """Replace the bucket's rules, unless they changed since they were read."""
        metadata = self._read(change.bucket)
        gone = {*change.replaced, *change.wanted}
        kept = [rule for rule in _rules(metadata) if _transition(change.bucket, rule) not in gone]
        rules = kept + [_rule(each) for each in change.wanted]
        intent = Intent("change the lifecycle of", f"gs://{change.bucket}", "storage.buckets.update")
        self._calls.json(
            Call(
                intent,
                "PATCH",
                self._calls.bucket_url(change.bucket),
                {"ifMetagenerationMatch": str(metadata.get("metageneration", ""))},
                {"Content-Type": "application/json"},
                json.dumps({"lifecycle": {"rule": rules}}).encode(),
                once=True,
            )
        )

    def _read(self, bucket: str) -> Mapping[str, Any]:
        intent = Intent("read the lifecycle of", f"gs://{bucket}", "storage.buckets.get")
        return self._calls.json(Call(intent, "GET", self._calls.bucket_url(bucket)))


def _rules(metadata: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from metadata.get("lifecycle", {}).get("rule", ())


def _rule(each: Transition) -> dict[str, Any]:
    return {
        "action": {"type": "SetStorageClass", "storageClass": each.storage_class},
        "condition": {"age": each.days, "matchesPrefix": [each.prefix], "matchesSuffix": [each.suffix]},
    }


def _transition(bucket: str, rule: Mapping[str, Any]) -> Transition | None:
    """A rule as `_rule` writes it; None for any other."""
    action, condition = rule.get("action", {}), rule.get("condition", {})
    prefixes, suffixes = condition.get("matchesPrefix", ()), condition.get("matchesSuffix", ())
    is_ours = condition.keys() == {"age", "matchesPrefix", "matchesSuffix"}
    if action.get("type") != "SetStorageClass" or not is_ours or len(prefixes) != 1 or len(suffixes) != 1:
        return None
    days = int(condition["age"])
    return Transition(bucket, prefixes[0], suffixes[0], str(action.get("storageClass")), days)
