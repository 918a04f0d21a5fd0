"""What schemas become does not change: columns, staged headers, fingerprints and rewritten schemas as recorded.

`recorded_schemas.jsonl` has schemas of the tests and random ones, with digests of what they became before the visitors
over one tree (core/avro/visitor.py): then eight walkers read schemas, each in its own way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.errors import KbqError
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.topics.business_time import BusinessTime
from kbq_assets.core.topics.personal import Pseudonyms, parse_decisions
from kbq_assets.wire.privacy.avro import rewriter
from kbq_assets.wire.privacy.tags import check_decided
from kbq_assets.wire.records.renaming import field_paths, renamed_json
from kbq_assets.wire.records.staged_schema import MetadataColumns, staged_schema

RECORDED = [
    json.loads(line) for line in (Path(__file__).parent / "recorded_schemas.jsonl").read_text().splitlines()
]
KEYS = Pseudonyms("a", {"a": bytes(32)})


def digest(made: Callable[[], Any]) -> str:
    try:
        text = repr(made())
    except KbqError as error:
        text = f"{type(error).__name__}: {error.message.rpartition(': ')[2]}"  # wording may change
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def outputs(schema: Any) -> dict[str, str]:
    text = json.dumps(schema)
    names = {path: f"x{index}" for index, path in enumerate(sorted(field_paths(text)))}
    columns = [each["name"] for each in schema["fields"]]

    def staged() -> Any:
        made = staged_schema(schema, MetadataColumns(headers=True, business_time=BusinessTime()))
        code = (made.program.code.tolist(), made.program.places)
        return made.json, made.fingerprint, made.columns, made.event_field, code

    return {
        "columns": digest(lambda: columns_of(text)),
        "staged": digest(staged),
        "renamed": digest(lambda: renamed_json(text, names)),
        "tags": digest(lambda: check_decided(schema, ())),
        "nulls": digest(
            lambda: rewriter(schema, parse_decisions(",".join(f"{c}:null" for c in columns)), KEYS).schema
        ),
        "drop": digest(lambda: rewriter(schema, parse_decisions(f"{columns[0]}:drop"), KEYS).schema),
    }


@pytest.mark.parametrize("recorded", RECORDED, ids=range(len(RECORDED)))
def test_a_schema_becomes_what_it_became(recorded: dict[str, Any]) -> None:
    assert outputs(recorded["schema"]) == recorded["outputs"]
