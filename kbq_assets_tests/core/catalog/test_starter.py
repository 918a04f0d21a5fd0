"""The first entries for an existing cluster form a valid catalog, whatever the topics' names are."""

from __future__ import annotations

import json

import pytest

from kbq_assets.core.catalog.changes import LiveTopic
from kbq_assets.core.catalog.starter import DraftFile, KnownSchemas, draft_entries, draft_root
from kbq_assets_tests.core.catalog.documents import catalog_of, documents

AVRO = KnownSchemas("avro", {"value": '{"type":"record","name":"größe","fields":[]}', "key": '"string"'})


def drafts(
    *topics: str, known: KnownSchemas | None = None, archived: tuple[str, ...] = ()
) -> list[DraftFile]:
    live = {topic: LiveTopic(3, 2, {"retention.ms": "5"}) for topic in topics}
    return draft_entries(
        live, dict.fromkeys(topics, known) if known else {}, "shop", "found", "prod", archived
    )


def entry_of(files: list[DraftFile]) -> dict[str, object]:
    [entry] = [each for each in files if each.is_entry]
    plain = documents({"e": entry.text})["e"].plain()
    assert isinstance(plain, dict)
    return plain


@pytest.mark.parametrize(
    ("topics", "folders"),
    [
        (["orders"], ["orders"]),
        (["Shop.Orders_v1"], ["shop-orders-v1"]),
        (["a.b", "a_b", "a-b"], ["a-b", "a-b-2", "a-b-3"]),
        (["a-b-2", "a.b", "a_b"], ["a-b-2", "a-b", "a-b-3"]),
        (["1st"], ["topic-1st"]),
        (["__"], ["topic"]),
        (["...x..."], ["x"]),
    ],
    ids=[
        "a word",
        "capitals and points",
        "names alike",
        "a number that is taken",
        "a digit",
        "no letter",
        "edges",
    ],
)
def test_each_topic_has_a_folder_that_the_rule_for_names_allows(
    topics: list[str], folders: list[str]
) -> None:
    found = {each.path.split("/")[2] for each in drafts(*topics)}
    assert found == set(folders)


def test_drafts_are_a_catalog_without_mistakes() -> None:
    files = [*draft_root("prod", "sales"), *drafts("a.b", "a_c", "1", known=AVRO, archived=("a.b",))]
    catalog = catalog_of({each.path: each.text for each in files if each.path.endswith(".yaml")})
    assert catalog.problems == ()
    assert {each.topic: each.archived for each in catalog.entries} == {"a.b": True, "a_c": False, "1": False}


@pytest.mark.parametrize(
    ("known", "records"),
    [
        (None, {"json": "columns"}),
        (KnownSchemas("debezium"), {"key_format": "avro", "tombstones": "skip"}),
        (AVRO, None),
    ],
)
def test_an_entry_says_what_the_topic_is(known: KnownSchemas | None, records: dict[str, str] | None) -> None:
    entry = entry_of(drafts("t", known=known))
    assert entry["encoding"] == (known.encoding if known else "json")
    assert entry.get("records") == records
    assert entry["kafka"] == {
        "name": "t",
        "partitions": 3,
        "replication": 2,
        "config": {"retention.ms": "5"},
    }


def test_only_a_named_topic_is_archived_and_a_team_owns_it() -> None:
    live = {"t": LiveTopic(1, 1)}
    plain = entry_of(draft_entries(live, {}, "c", "d", "e"))
    assert (plain["consumers"], plain.get("ownership")) == ([], None)
    owned = entry_of(draft_entries(live, {}, "c", "d", "e", ("t",), 'a "team"'))
    assert (owned["consumers"], owned["ownership"]) == (["archiver"], {"team": 'a "team"'})
    assert "config" not in owned["kafka"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("encoding", "schema", "name", "text"),
    [
        ("avro", '{"type": "long"}', "value.avsc", '{\n  "type": "long"\n}\n'),
        ("json-schema", '{"title":"größe"}', "value.json", '{\n  "title": "größe"\n}\n'),
        ("protobuf", 'syntax = "proto3";\n\n', "value.proto", 'syntax = "proto3";\n'),
    ],
)
def test_schemas_are_files_that_people_can_read(encoding: str, schema: str, name: str, text: str) -> None:
    entry, file = drafts("t", known=KnownSchemas(encoding, {"value": schema}))
    assert (file.path, file.text, file.is_entry) == (f"shop/found/t/prod/schemas/{name}", text, False)
    assert entry.path == "shop/found/t/prod/topic.yaml"


def test_the_schema_of_values_comes_before_that_of_keys() -> None:
    names = [each.path.rpartition("/")[2] for each in drafts("t", known=AVRO)]
    assert names == ["topic.yaml", "value.avsc", "key.avsc"]
    assert json.loads(drafts("t", known=AVRO)[2].text) == "string"


def test_without_a_team_the_defaults_show_how_to_name_one() -> None:
    texts = {each.path: each.text for each in draft_root("prod")}
    assert "# ownership: {team: sales}" in texts["defaults.yaml"]
    assert "envs: [prod]" in texts["catalog.yaml"]
