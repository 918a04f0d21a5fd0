"""The catalog's decisions and its schemas: an entry's own decisions must concern its fields, inherited ones need
not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbq_assets.adapters.catalog_files import CatalogFolder
from kbq_assets.pipelines.catalog.reader import read_catalog

ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "street", "type": "string"}]}
FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "email", "type": "string", "pii": "HIGH"},
    {"name": "billing", "type": ADDRESS},
    {"name": "shipping", "type": "Address"},
]
AVRO = {"type": "record", "name": "Order", "fields": FIELDS}
JSON = {
    "properties": {"id": {"type": "integer"}, "email": {"type": "string", "pii": "HIGH"}, "billing": {}},
    "type": "object",
}
SCHEMAS = {"avro": ("value.avsc", AVRO), "json": ("value.json", JSON)}
ENTRY = "shop/sales/orders/prod/topic.yaml"


def problems(folder: Path, encoding: str, **decisions: str) -> list[str]:
    """Mistakes of a catalogue with decisions in these files, ``__`` for folders."""
    name, schema = SCHEMAS[encoding]
    said = {ENTRY: f"kafka: {{name: orders}}\nencoding: {encoding}\nconsumers: [archiver]\n"}
    for file, fields in decisions.items():
        path = ENTRY if file == "entry" else f"{file.replace('__', '/')}.yaml"
        said[path] = said.get(path, "") + f"pii: {{fields: {{{fields}}}}}\n"
    for path, text in {**said, f"shop/sales/orders/schemas/{name}": json.dumps(schema)}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return list(map(str, read_catalog(CatalogFolder(folder).read()).problems))


@pytest.mark.parametrize("encoding", SCHEMAS)
def test_a_field_that_an_entry_decides_about_is_in_its_schema(tmp_path: Path, encoding: str) -> None:
    assert problems(tmp_path, encoding, entry="email: drop") == []
    [found] = problems(tmp_path, encoding, entry="email: drop, emial: drop")
    assert f"{ENTRY}:4: pii.fields.emial: " in found
    assert "'emial' (did you mean 'email'?)" in found
    [found] = problems(tmp_path, encoding, entry="email: drop, phone: drop")
    assert "a defaults.yaml decides about fields of other schemas" in found


@pytest.mark.parametrize("encoding", SCHEMAS)
@pytest.mark.parametrize(
    "file", ["defaults", "shop__sales__defaults", "shop__sales__orders__defaults", "shop__defaults.prod"]
)
def test_a_field_that_defaults_decide_about_may_be_another_schema_s(
    tmp_path: Path, encoding: str, file: str
) -> None:
    assert problems(tmp_path, encoding, **{file: "email: drop, phone: drop"}) == []
    [found] = problems(tmp_path, encoding, **{file: "phone: drop"})
    assert "email" in found


def test_a_decision_of_defaults_can_be_carried_out_too(tmp_path: Path) -> None:
    [found] = problems(tmp_path, "avro", defaults="email: drop, id: 'truncate:3'", entry="billing: drop")
    assert "field 'id' is not a text" in found
