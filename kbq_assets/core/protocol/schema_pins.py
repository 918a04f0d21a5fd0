"""Schema fingerprints that a commit stores by schema id (PROTOCOL E12)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kbq_assets.core.errors import StateError
from kbq_assets.core.protocol.commits import Commit


def pin(commit: Commit, schema_ids: Mapping[int, str]) -> Commit:
    """The commit with fingerprints added. Raises StateError for an id that already has a different one."""
    for schema_id, fingerprint in schema_ids.items():
        if commit.schema_ids.get(schema_id, fingerprint) != fingerprint:
            raise StateError(f"{commit.topic}: the registry changed schema {schema_id} while it was read")
    if schema_ids.keys() <= commit.schema_ids.keys():
        return commit
    return dataclasses.replace(commit, schema_ids={**commit.schema_ids, **schema_ids})


def accept_schemas(commit: Commit) -> Commit:
    """Drop all fingerprints, and resume the partitions that stopped because of a changed schema."""
    partitions = {
        number: dataclasses.replace(state, stop=None)
        if state.stop and state.stop.reason == "schema_changed"
        else state
        for number, state in commit.partitions.items()
    }
    return dataclasses.replace(commit, partitions=partitions, schema_ids={})
