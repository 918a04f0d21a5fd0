"""Fingerprints of schemas, as other libraries make them."""

from __future__ import annotations

import random

import fastavro
import pytest

from kbq_assets.core.avro.canonical import rabin_fingerprint
from kbq_assets.core.avro.tree import parse
from kbq_assets_tests.wire.generate import make_schema


@pytest.mark.parametrize(
    ("schema", "fingerprint"),  # the first two are of Avro's own tests
    [
        ("null", 0x63DD24E7CC258F8A),
        ("int", 0x7275D51A3F395C8F),
        ({"type": "string", "logicalType": "uuid"}, 0x8F014872634503C7),
    ],
)
def test_a_fingerprint_is_that_of_the_specification(schema: object, fingerprint: int) -> None:
    assert rabin_fingerprint(parse(schema)) == fingerprint.to_bytes(8, "little")


def test_fingerprints_are_those_of_another_library() -> None:
    for seed in range(100):
        schema = make_schema(random.Random(seed))
        form = fastavro.schema.to_parsing_canonical_form(schema)
        assert rabin_fingerprint(parse(schema)).hex() == fastavro.schema.fingerprint(form, "CRC-64-AVRO"), (
            schema
        )
