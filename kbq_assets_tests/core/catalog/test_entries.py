"""Entries: inheritance and names. Every mistake is reported with its place and the correct form."""

from __future__ import annotations

import pytest

from kbq_assets.core.catalog import CatalogEntry
from kbq_assets.core.catalog.fields import options_of
from kbq_assets.core.topics.business_time import parse_business_time
from kbq_assets.core.topics.personal import parse_decisions
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import OPTIONS, TopicSettings
from kbq_assets_tests.core.catalog.documents import ENTRY, catalog_of, problems_of


def entry_of(texts: dict[str, str], defaults: TopicSettings | None = None) -> CatalogEntry:
    catalog = catalog_of(texts, defaults)
    assert [str(problem) for problem in catalog.problems] == []
    [entry] = catalog.entries
    return entry


def test_an_empty_entry_is_named_by_its_path() -> None:
    entry = entry_of({ENTRY: ""}, TopicSettings.of(dataset="kafka"))
    assert entry.topic == "shop_prod_sales_orders_public_avro"
    assert entry.settings == TopicSettings.of(dataset="kafka", table="orders")
    assert not entry.archived


@pytest.mark.parametrize(
    "text",
    [
        "kafka:",
        "kafka: {config: }",
        "kafka: {name: }",
        "destination:",
        "destination: {table: }",
        "ownership: {team: }",
    ],
)
def test_a_section_or_key_without_a_value_is_as_if_it_were_not_there(text: str) -> None:
    found, expected = entry_of({ENTRY: text}), entry_of({ENTRY: ""})
    assert (found.topic, found.kafka, found.settings) == (expected.topic, expected.kafka, expected.settings)


def test_every_notice_arrives() -> None:
    entry = entry_of(
        {
            ENTRY: """
            description: Orders.
            encoding: json
            ownership: {team: sales, cost_center: c42}
            consumers: [fraud, archiver]
            partition_time: ordered_at
            kafka: {name: shop.orders.v1, partitions: 6, replication: 3, retention: 7d, config: {max.message.bytes: 10}}
            destination: {dataset: sales, table: orders_v1, cluster_by: [customer, country]}
            records: {keys: true, errors: skip, error_share: 1}
            extraction: {priority: 7, max_records: 100, start: latest, window_seconds: 60, window_bytes: 1000}
            """
        }
    )
    assert entry.archived
    assert entry.source == SourceEntry(
        "shop.orders.v1",
        TopicSettings.of(
            dataset="sales",
            table="orders_v1",
            format="json",
            event_date="ordered_at",
            owner="sales",
            cost_center="c42",
            cluster_by="customer,country",
            keys=True,
            errors="skip",
            error_share=1,
            priority="7",
            max_records=100,
            window_seconds=60,
            window_bytes=1000,
            start="latest",
        ),
    )
    assert (entry.kafka.partitions, entry.kafka.replication) == (6, 3)
    assert entry.kafka.config == {"retention.ms": "604800000", "max.message.bytes": "10"}


@pytest.mark.parametrize(
    ("said", "option"),
    [
        ("auto", "auto"),
        ("{field: a.b, format: epoch_s}", "a.b:epoch_s"),
        ("{candidates: [a, b]}", "a|b"),
        ("{format: epoch_ms}", "auto:epoch_ms"),
    ],
)
def test_a_business_time_is_a_word_or_keys(said: str, option: str) -> None:
    assert entry_of({ENTRY: f"partition_time: {said}"}).settings.records.event_date == parse_business_time(
        option
    )
    # What an entry names itself is tried before what it inherits.
    inherited = {"defaults.yaml": "partition_time: {candidates: [z]}", ENTRY: "partition_time: {field: a}"}
    assert entry_of(inherited).settings.records.event_date == parse_business_time("a|z")


@pytest.mark.parametrize(
    ("said", "where", "message"),
    [
        ("{feild: a}", "partition_time.feild", "unknown key"),
        ("{format: epoch}", "partition_time.format", "is not a value of format"),
        ("a:epoch", "partition_time", "no format 'epoch'"),
        ("[a]", "partition_time", "expected text, found a list"),
    ],
)
def test_a_wrong_business_time_is_named_with_its_place(said: str, where: str, message: str) -> None:
    [problem] = catalog_of({ENTRY: f"partition_time: {said}"}).problems
    assert (problem.where, message in problem.message) == (where, True)


@pytest.mark.parametrize(("words", "format_"), [("", "json"), ("records: {json: columns}", "json_columns")])
def test_json_documents_are_one_column_or_many(words: str, format_: str) -> None:
    assert entry_of({ENTRY: f"encoding: json\n{words}"}).settings.records.format == format_


def test_decisions_about_personal_data_arrive() -> None:
    text = "consumers: [archiver]\npii: {level: HIGH, fields: {email: 'pseudonym:customer', home.zip: drop}}"
    assert entry_of({ENTRY: text}).settings.privacy.decisions == parse_decisions(
        "email:pseudonym:customer,home.zip:drop"
    )


def test_nearer_defaults_win_and_maps_are_joined() -> None:
    texts = {
        "defaults.yaml": "ownership: {team: all, cost_center: c1}\nextraction: {priority: low}",
        "shop/defaults.yaml": "ownership: {team: company}",
        "shop/sales/defaults.json": '{"ownership": {"team": "domain"}, "extraction": {"codec": "deflate"}}',
        "shop/sales/defaults.prod.yaml": "extraction: {priority: high}",
        "shop/sales/defaults.dev.yaml": "extraction: {priority: 3}",
        "shop/sales/orders/defaults.yaml": "records: {keys: true}",
        ENTRY: "records: {headers: true}\nownership: {cost_center: null}",
    }
    settings = entry_of(texts).settings
    assert settings == TopicSettings.of(
        table="orders", owner="domain", priority="high", codec="deflate", keys=True, headers=True
    )


def test_names_follow_the_convention() -> None:
    entry = entry_of(
        {
            "catalog.yaml": "names: {topic: '{domain}.{topic}.{env}', dataset: '{company}-{domain}', "
            "table: '{topic}_{env}'}",
            ENTRY: "",
        }
    )
    assert (entry.topic, str(entry.settings.destination.table_for(entry.topic))) == (
        "sales.orders.prod",
        "shop_sales.orders_prod",
    )


def test_every_option_of_extraction_has_its_place() -> None:
    assert set(options_of()) | {"format", "declared"} == set(OPTIONS)


def test_environments_are_distinguished() -> None:
    catalog = catalog_of({ENTRY: "", "shop/sales/orders/dev/topic.json": "{}"})
    assert catalog.envs == ("dev", "prod")
    assert [e.topic for e in catalog.of_env("dev")] == ["shop_dev_sales_orders_public_avro"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ownershp: {team: x}", "1: ownershp: unknown key 'ownershp' (did you mean 'ownership'?)"),
        (
            "kafka:\n  partition: 3",
            "2: kafka.partition: unknown key 'partition' (did you mean 'partitions'?)",
        ),
        ("dataset: x", "1: dataset: unknown key 'dataset' (it belongs to 'destination')"),
        (
            "kafka: [1]",
            "1: kafka: expected keys, found a list (name, partitions, replication, retention, config)",
        ),
        ("kafka: {partitions: many}", "1: kafka.partitions: expected a whole number, found 'many'"),
        ("kafka: {partitions: true}", "1: kafka.partitions: expected a whole number, found True"),
        ("records: {keys: yes}", "1: records.keys: expected true or false, found 'yes'"),
        ("consumers: archiver", "1: consumers: expected a list of texts, found 'archiver'"),
        ("labels: {a: [1]}", "1: labels: expected keys with single values, found keys"),
        (
            "extraction: {backup: maybe}",
            "1: extraction.backup: 'maybe' is not a value of backup (one of true, false, only)",
        ),
        ("scope: publc", "1: scope: 'publc' is not a value of scope (did you mean 'public'?)"),
        (
            "kafka: {retention: 7 days}",
            "1: kafka.retention: '7 days' is not a duration (12h, 7d, or forever)",
        ),
        ("kafka: {name: 'a b'}", "1: kafka.name: topic name 'a b' cannot be part of file names"),
        ("extraction:\n  priority: huge", "2: extraction.priority: priority=huge (high, normal, low"),
        ("extraction: {window_records: -1}", "1: extraction.window_records: window_records=-1 (0 or more)"),
        (
            "extraction: {window_seconds: 1m}",
            "1: extraction.window_seconds: expected a whole number, found '1m'",
        ),
        ("extraction: {max_bytes: 5}", "1: extraction.max_bytes: max_bytes=5 is less than max_record_bytes="),
        ("destination: {dataset: a-b}", "1: destination.dataset: dataset=a-b is not the name of a dataset"),
        ("destination: {dataset: ''}", "1: destination.dataset: dataset= is not the name of a dataset"),
        (
            "destination: {table: 'x_{key}', error_dataset: a.b}",
            "1: destination.error_dataset: error_dataset=a.b is not the name of a dataset",
        ),
        (
            "consumers: [archiver]\npii:\n  level: HIGH",
            "3: pii.level: HIGH personal data without a decision",
        ),
        (
            "pii:\n  fields: {email: hash}",
            "2: pii.fields: pii: 'email:hash' is not a decision (field:action, with an action of keep",
        ),
        (
            "consumers: [archiver]\npii: {tags: {email: HIGH, home.street: HIGH}, fields: {home: drop}}",
            "2: pii.tags: no decision about fields with the tag HIGH: email",
        ),
        ("pii: {tags: {email: SECRET}}", "1: pii.tags: email: 'SECRET' is not a level"),
    ],
)
def test_a_mistake_names_its_line_its_key_and_what_is_right(text: str, expected: str) -> None:
    [problem] = problems_of(text)
    assert problem.startswith(f"{ENTRY}:{expected}")


def test_a_mistake_in_defaults_is_reported_once_and_there() -> None:
    texts = {"defaults.yaml": "scop: x", ENTRY: "", "shop/sales/items/prod/topic.yaml": ""}
    assert [str(p) for p in catalog_of(texts).problems] == [
        "defaults.yaml:1: scop: unknown key 'scop' (did you mean 'scope'?)"
    ]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("shop/orders/prod/topic.yaml", "an entry belongs at <company>/<domain>/<topic>/<env>/topic.yaml"),
        ("shop/sales/Orders/prod/topic.yaml", "topic 'Orders' breaks the rule for names"),
        ("shop/sales/orders/prod/topics.yaml", "not a file of the catalog"),
    ],
)
def test_a_file_at_the_wrong_place_is_a_mistake(path: str, expected: str) -> None:
    [problem] = catalog_of({path: ""}).problems
    assert expected in problem.message


def test_rules_are_the_catalogue_s_own() -> None:
    texts = {
        "catalog.yaml": "rules: {mandatory: [description, ownership.team], part: '[a-z]+'}\nenvs: [dev, test]",
        ENTRY: "description: x",
    }
    assert [str(p) for p in catalog_of(texts).problems] == [
        f"{ENTRY}:1: unknown environment 'prod' (one of dev, test)",
        f"{ENTRY}:1: ownership.team: is mandatory and missing (add it here or in a defaults.yaml above)",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("names: {topic: '{compny}'}", "catalog.yaml:1: names.topic: '{compny}' is not a template"),
        ("names: {topic: '{company'}", "catalog.yaml:1: names.topic: '{company' is not a template"),
        ("names: {topic: '{company.__class__}'}", "catalog.yaml:1: names.topic: "),
        ("rules:\n  part: '['", "catalog.yaml:2: rules.part: '[' is not a regular expression"),
        ("name: {}", "catalog.yaml:1: name: unknown key 'name' (did you mean 'names'?)"),
    ],
)
def test_a_convention_that_cannot_work_is_a_mistake(text: str, expected: str) -> None:
    [problem] = catalog_of({"catalog.yaml": text}).problems
    assert str(problem).startswith(expected)


def test_topics_that_kafka_would_not_distinguish_collide() -> None:
    other = "shop/sales/items/prod/topic.yaml"
    texts = {ENTRY: "kafka: {name: a.b}", other: "description: x\nkafka:\n  name: a_b"}
    [problem] = catalog_of(texts).problems
    assert str(problem) == f"{ENTRY}:1: kafka.name: topic a.b collides with topic a_b (see {other})"


def test_tables_that_differ_by_case_alone_collide_where_they_are_filled() -> None:
    other = "shop/sales/items/prod/topic.yaml"
    texts = {
        ENTRY: "consumers: [archiver]\ndestination: {table: T}",
        other: "consumers: [archiver]\ndestination: {table: t}",
    }
    assert len(catalog_of(texts).problems) == 1
    assert catalog_of({**texts, other: "destination: {table: t}"}).problems == ()
    assert catalog_of({**texts, other: texts[ENTRY]}).problems == ()  # one table of two topics is meant


TAG = "projects/shop/locations/eu/taxonomies/12/policyTags/34"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"policy_tags: {{HIGH: {TAG}}}", ""),
        (f"policy_tags: {{VERY: {TAG}}}", "catalog.yaml:1: policy_tags.VERY: 'VERY' is not a level"),
        (
            "policy_tags:\n  HIGH: taxonomies/12",
            "catalog.yaml:2: policy_tags.HIGH: 'taxonomies/12' is not a policy tag",
        ),
    ],
)
def test_policy_tags_are_bigquery_s_and_of_levels_that_there_are(text: str, problem: str) -> None:
    catalog = catalog_of({"catalog.yaml": text, ENTRY: "columns: {email: Where to write to.}"})
    assert [str(each).partition(" (")[0] for each in catalog.problems] == ([problem] if problem else [])
    assert catalog.convention.policy_tags == ({} if problem else {"HIGH": TAG})


def test_a_destination_may_be_a_template_in_which_the_topic_stands() -> None:
    entry = entry_of(
        {
            ENTRY: """
            kafka: {name: shop.orders.v1}
            destination:
              dataset: "{topic.1}"
              table: "{topic.2}_{header.country|xx}"
              unknown: create
              tables: [orders_de, "orders_f*"]
              max_tables: 10
            """
        }
    )
    assert entry.settings == TopicSettings.of(
        dataset="shop",
        table="orders_{header.country|xx}",
        unknown_table="create",
        tables="orders_de,orders_f*",
        max_tables=10,
    )
    assert entry.settings.destination.target(entry.topic) == "shop.orders_{header.country|xx}"


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ('destination: {table: "{body.x}"}', "destination.table", "records have no 'body.x'"),
        ('destination: {dataset: "{key}"}', "destination.dataset", "each record chooses its own"),
        ("destination: {route: sideways}", "destination.route", "route=sideways"),
        ('destination: {table: "{topic.9}"}', "destination.table", "has no topic.9"),
        ("destination: {tables: [a, A]}", "destination.tables", "differ only by case"),
        ("destination: {max_tables: 0}", "destination.max_tables", "max_tables=0"),
        (
            'destination: {table: "{field.email}"}\npii: {fields: {email: pseudonym}}',
            "destination.table",
            "field.email would appear in table names",
        ),
    ],
)
def test_a_destination_s_mistake_names_file_line_and_key(text: str, key: str, message: str) -> None:
    [problem] = problems_of(f"description: x\n{text}")
    assert (problem.startswith(f"{ENTRY}:2: {key}: "), message in problem) == (True, True)
