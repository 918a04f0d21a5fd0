"""Lifecycle rules of Cloud Storage's buckets (`ports.lifecycle`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud.storage import Client

from kbq_assets.adapters.gcs.calls import PAUSES, Call, Calls, listed, text, texts
from kbq_assets.adapters.gcs.errors import Intent
from kbq_assets.core.catalog.lifecycle import SetTransitions, Transition


class GcsLifecycles:
    """Reads and changes the rules of buckets."""

    def __init__(self, client: Client, pauses: Sequence[float] = PAUSES) -> None:
        self._calls = Calls(client, pauses)

    def transitions(self, bucket: str) -> tuple[Transition, ...]:
        return self._read(bucket).transitions

    def change(self, change: SetTransitions) -> None:
        """Replace the bucket's rules, unless they changed since they were read."""
        found = self._read(change.bucket)
        gone = {*change.replaced, *change.wanted}
        kept = [rule for rule, transition in found.rules if transition not in gone]
        rules = kept + [_rule(each) for each in change.wanted]
        intent = Intent("change the lifecycle of", f"gs://{change.bucket}", "storage.buckets.update")
        self._calls.json(
            Call(
                intent,
                "PATCH",
                self._calls.bucket_url(change.bucket),
                {"ifMetagenerationMatch": found.metageneration},
                {"Content-Type": "application/json"},
                json.dumps({"lifecycle": {"rule": rules}}).encode(),
                once=True,
            )
        )

    def _read(self, bucket: str) -> _Lifecycle:
        intent = Intent("read the lifecycle of", f"gs://{bucket}", "storage.buckets.get")

        def parse(metadata: Mapping[str, Any]) -> _Lifecycle:
            rules = listed(metadata.get("lifecycle", {}).get("rule", []))
            found = tuple((rule, _transition(bucket, rule)) for rule in rules)
            return _Lifecycle(text(metadata["metageneration"]), found)

        return self._calls.parsed(Call(intent, "GET", self._calls.bucket_url(bucket)), parse)


@dataclass(frozen=True)
class _Lifecycle:
    """A bucket's rules, each with its transition if it is one, and the version of its metadata."""

    metageneration: str
    rules: tuple[tuple[Mapping[str, Any], Transition | None], ...]

    @property
    def transitions(self) -> tuple[Transition, ...]:
        return tuple(transition for _, transition in self.rules if transition is not None)


def _rule(each: Transition) -> dict[str, Any]:
    return {
        "action": {"type": "SetStorageClass", "storageClass": each.storage_class},
        "condition": {"age": each.days, "matchesPrefix": [each.prefix], "matchesSuffix": [each.suffix]},
    }


def _transition(bucket: str, rule: Mapping[str, Any]) -> Transition | None:
    """A rule as `_rule` writes it; None for any other."""
    action, condition = rule.get("action", {}), rule.get("condition", {})
    prefixes, suffixes = texts(condition.get("matchesPrefix", [])), texts(condition.get("matchesSuffix", []))
    is_ours = condition.keys() == {"age", "matchesPrefix", "matchesSuffix"}
    if action.get("type") != "SetStorageClass" or not is_ours or len(prefixes) != 1 or len(suffixes) != 1:
        return None
    days = int(condition["age"])
    return Transition(bucket, prefixes[0], suffixes[0], str(action.get("storageClass")), days)
