"""Compiles whatever a registry stores as Protobuf: text, descriptors, imports."""

from __future__ import annotations

import base64

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kbq_assets.adapters.protobuf import compile_types, fields_of
from kbq_assets.core.catalog.schema_rules import SchemaRules
from kbq_assets.core.errors import EncodingError
from kbq_assets.pipelines.catalog.schema_kinds import SchemaFile, protobuf_problems

ITEM = 'syntax = "proto3"; package shop; message Item { string sku = 1; }'
MAIN = 'syntax = "proto3"; import "shop/item.proto"; message A { shop.Item item = 1; }'


def serialized(schema: str, imports: dict[str, str]) -> str:
    """A schema as Confluent's Python client registers it."""
    found = FileDescriptorProto.FromString(compile_types(schema, imports).file.serialized_pb)
    found.name = "of/the/producer.proto"
    return base64.b64encode(found.SerializeToString()).decode()


@pytest.mark.parametrize(
    "main", [MAIN, serialized(MAIN, {"shop/item.proto": ITEM})], ids=["text", "descriptor"]
)
@pytest.mark.parametrize("item", [ITEM, serialized(ITEM, {})], ids=["text", "descriptor"])
def test_schema_and_imports_may_be_texts_or_descriptors(main: str, item: str) -> None:
    found = compile_types(main, {"shop/item.proto": item}).at([0])
    assert found is not None and found.fields[0].message_type.full_name == "shop.Item"


def test_a_descriptor_that_kills_protoc_is_refused() -> None:
    found = FileDescriptorProto(name="a.proto", dependency=["confluent/meta.proto"])
    field = found.message_type.add(name="A").field.add(name="x", number=1, type="TYPE_INT32")
    field.options.MergeFromString(b"\x82\x44\x01\xff")  # a field_meta that is no message
    with pytest.raises(EncodingError, match="protoc ended by signal 6"):
        compile_types(base64.b64encode(found.SerializeToString()).decode(), {})


def test_the_catalog_checks_descriptors_like_texts() -> None:
    text = serialized('syntax = "proto3"; message A { string made_at = 1; string x = 2; }', {})
    assert dict(fields_of(text)) == {"A.made_at": "text", "A.x": "text"}
    schema = SchemaFile("value.proto", "value", text, "PROTOBUF", "t-value", SchemaRules(times=".*_at"))
    [problem] = protobuf_problems(schema, fields_of)
    assert problem.where == "A.made_at"


def test_what_every_registry_knows_needs_no_reference() -> None:
    schema = """syntax = "proto3"; import "confluent/meta.proto"; import "confluent/types/decimal.proto";
    import "confluent/type/variant.proto"; import "google/type/money.proto"; import "google/type/datetime.proto";
    import "google/protobuf/any.proto";
    message A { confluent.type.Decimal d = 1; google.type.Money m = 2; google.type.DateTime t = 3;
      string e = 4 [(confluent.field_meta) = {tags: ["PII"]}]; google.protobuf.Any any = 5;
      confluent.type.Variant v = 6; }"""
    for each in (schema, serialized(schema, {})):
        found = compile_types(each, {}).at([0])
        assert found is not None and [field.name for field in found.fields] == [
            "d",
            "m",
            "t",
            "e",
            "any",
            "v",
        ]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("message", "schema.proto:1:8: Expected message name."),
        ('syntax = "proto3"; import "gone.proto";', "gone.proto: File not found."),
        ('syntax = "proto3"; message A { X x = 1; }', 'schema.proto:1:32: "X" is not defined.'),
        (serialized(MAIN, {"shop/item.proto": ITEM}), "shop/item.proto: File not found."),
    ],
)
def test_what_is_wrong_in_a_schema_is_reported(schema: str, why: str) -> None:
    with pytest.raises(EncodingError) as refused:
        compile_types(schema, {})
    assert refused.value.message == f"the schema is not Protobuf: {why}"


def test_imports_are_the_registry_s_references() -> None:
    main = 'syntax = "proto3"; import "shop/item.proto"; message A { shop.Item item = 1; }'
    item = 'syntax = "proto3"; package shop; message Item { string sku = 1; }'
    found = compile_types(main, {"shop/item.proto": item}).at([0])
    assert found is not None and found.fields[0].message_type.full_name == "shop.Item"


@pytest.mark.parametrize(
    "schema", ["", "message", '{"type":"record"}', 'syntax = "proto3"; import "gone.proto";']
)
def test_what_is_no_schema_is_refused(schema: str) -> None:
    if schema:
        with pytest.raises(EncodingError, match="not Protobuf"):
            compile_types(schema, {})
    else:
        assert compile_types(schema, {}).at([0]) is None


@pytest.mark.parametrize("name", ["a\0.proto", "\ud800.proto", "x" * 300 + ".proto", ""])
def test_an_import_that_no_file_can_be_called_is_refused(name: str) -> None:
    with pytest.raises(EncodingError, match="cannot be compiled"):
        compile_types('syntax = "proto3"; message A { int32 x = 1; }', {name: 'syntax = "proto3";'})


def test_imports_may_be_called_like_each_other_s_folders_and_like_the_schema_itself() -> None:
    texts = {
        name: f'syntax = "proto3"; package {package}; message M {{ int32 x = 1; }}'
        for name, package in (("a", "p"), ("a/b.proto", "q"), ("schema.proto", "r"))
    }
    main = "".join(
        [
            'syntax = "proto3";',
            *(f'import "{name}";' for name in texts),
            "message A { p.M x = 1; q.M y = 2; r.M z = 3; }",
        ]
    )
    found = compile_types(main, texts).at([0])
    assert found is not None
    assert [field.message_type.full_name for field in found.fields] == ["p.M", "q.M", "r.M"]


def test_an_import_does_not_leave_its_folder() -> None:
    with pytest.raises(EncodingError, match="imports"):
        compile_types("", {"../../x.proto": ""})
