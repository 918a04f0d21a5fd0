"""Records that choose their tables: staged, loaded and accounted for like others, and never lost."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pytest

from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.pipelines.bench import TP, Bench
from kbq_assets_tests.wire.samples import avro_body, framed

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "country", "type": ["null", "string"]},
        {
            "name": "customer",
            "type": [
                "null",
                {"type": "record", "name": "Customer", "fields": [{"name": "tier", "type": "int"}]},
            ],
        },
    ],
}
Headers = Sequence[tuple[str, bytes | None]]


def bench_of(settings: TopicSettings, **options: Any) -> Bench:
    bench = Bench(settings, **options)
    bench.registry.schemas[10] = json.dumps(ORDER)
    return bench


def settings_of(table: str, **options: Any) -> TopicSettings:
    defaults: dict[str, Any] = {"dataset": "d", "table": table, "error_share": 1.0}
    return TopicSettings.of(**(defaults | options))


def order(country: str | None = None, tier: int | None = None) -> bytes:
    customer = None if tier is None else {"tier": tier}
    return framed(avro_body(ORDER, {"id": 1, "country": country, "customer": customer}), 10)


def produce(bench: Bench, *values: bytes | None, key: bytes | None = b"k", headers: Headers = ()) -> None:
    for value in values:
        bench.kafka.produce(TP, value, key=key, timestamp=86_400_000, headers=headers)


def tables(bench: Bench) -> dict[str, list[int]]:
    """Offsets of each table in the warehouse, after all is loaded and accounted for."""
    bench.load()
    assert bench.reconcile().accounted
    return {
        str(name): [row.offset for row in stored.rows]
        for name, stored in sorted(bench.warehouse.stored.items())
    }


def errors(bench: Bench) -> list[tuple[int, str, str]]:
    """Offset, reason and message of error rows."""
    files = [
        f for w in bench.commit().partitions[0].windows for f in w.files if f.table.table == "kbq_errors"
    ]
    readers = [fastavro.reader(io.BytesIO(bench.store.get(file.path).data)) for file in files]
    rows = [row for reader in readers for row in reader if isinstance(row, dict)]
    return [(row["_kafka_offset"], row["reason"], row["message"]) for row in rows]


def test_a_field_decides_and_what_it_does_not_say_goes_to_the_error_table() -> None:
    bench = bench_of(settings_of("orders_{field.country}"))
    produce(
        bench,
        order("DE"),
        order("fr"),
        order(None),
        order("de"),
        order("日本"),
        order(""),
        b"bad",
        order("FR"),
    )
    bench.extract()
    assert errors(bench) == [
        (2, "UNKNOWN_TABLE", "field.country is missing or empty"),
        (4, "UNKNOWN_TABLE", "field.country is '日本', unusable as a name"),
        (5, "UNKNOWN_TABLE", "field.country is missing or empty"),
        (6, "WRONG_MAGIC", errors(bench)[3][2]),
    ]
    assert tables(bench) == {"d.kbq_errors": [2, 4, 5, 6], "d.orders_de": [0, 3], "d.orders_fr": [1, 7]}


def test_keys_headers_and_fields_fill_dataset_and_table() -> None:
    template = settings_of(
        "{record}_{key}_{field.customer.tier|0}",
        dataset="d_{header.land|xx}",
        error_dataset="d",
        format="avro",
    )
    bench = bench_of(template)
    produce(bench, order(tier=2), headers=[("land", b"de")])
    produce(bench, order(tier=2), headers=[("land", b"de"), ("land", b"FR")])
    produce(bench, order())
    produce(bench, order(), key=b"\xff")
    bench.extract()
    [file] = [f for f in bench.commit().partitions[0].windows[0].files if str(f.table) == "d_de.order_k_2"]
    header = fastavro.reader(io.BytesIO(bench.store.get(file.path).data)).writer_schema
    assert isinstance(header, dict)
    assert not {"_kafka_key", "_kafka_headers"} & {field["name"] for field in header["fields"]}
    assert tables(bench) == {
        "d.kbq_errors": [3],
        "d_de.order_k_2": [0],
        "d_fr.order_k_2": [1],
        "d_xx.order_k_0": [2],
    }


@pytest.mark.parametrize(
    ("options", "placed"),
    [
        ({}, {"d.orders_at": [2], "d.orders_de": [0], "d.orders_fr": [1]}),
        ({"tables": "orders_de,orders_f*"}, {"d.kbq_errors": [2], "d.orders_de": [0], "d.orders_fr": [1]}),
        ({"tables": "Orders_DE,d.orders_fr"}, {"d.Orders_DE": [0], "d.kbq_errors": [2], "d.orders_fr": [1]}),
        (
            {"tables": "orders_de", "unknown_table": "create"},
            {"d.orders_at": [2], "d.orders_de": [0], "d.orders_fr": [1]},
        ),
        ({"max_tables": 2}, {"d.kbq_errors": [2], "d.orders_de": [0], "d.orders_fr": [1]}),
        ({"max_tables": 2, "errors": "skip"}, {"d.kbq_errors": [2], "d.orders_de": [0], "d.orders_fr": [1]}),
        ({"max_tables": 2, "errors": "fail"}, {"d.kbq_errors": [2], "d.orders_de": [0], "d.orders_fr": [1]}),
    ],
)
def test_only_known_tables_are_made_and_only_so_many(
    options: dict[str, Any], placed: dict[str, list[int]]
) -> None:
    bench = bench_of(settings_of("orders_{field.country}", **options))
    produce(bench, order("de"), order("FR"), order("at"))
    bench.extract()
    assert tables(bench) == placed


def test_the_cap_is_of_a_window_and_says_what_it_turned_away() -> None:
    bench = bench_of(settings_of("{field.country}", max_tables=1), window=WindowLimits(records=2))
    produce(bench, order("a1"), order("b1"), order("b1"), order("c1"))
    bench.extract()
    assert [(offset, reason, message.split(":")[0]) for offset, reason, message in errors(bench)] == [
        (1, "TOO_MANY_TABLES", "d.b1"),
        (3, "TOO_MANY_TABLES", "d.c1"),
    ]
    assert tables(bench) == {"d.a1": [0], "d.b1": [2], "d.kbq_errors": [1, 3]}


def test_a_record_cannot_choose_kbq_s_own_tables_or_names_that_files_cannot_carry() -> None:
    bench = bench_of(settings_of("{field.country}"))
    produce(bench, order("KBQ_errors"), order("x" * 200), order("x" * 201), order("de"))
    bench.extract()
    assert [message.partition(" ")[2][:30] for _, _, message in errors(bench)] == [
        "is reserved for KBQ's own tabl",
        "is too long for file names",
        f"is {'x' * 100!r}, unusable as a name"[:30],
    ]
    assert tables(bench) == {"d.de": [3], "d.kbq_errors": [0, 1, 2]}


def test_tombstones_choose_by_key_and_headers_alone() -> None:
    bench = bench_of(settings_of("{header.land}_{field.country|none}", tombstones="row"))
    produce(bench, order("de"), None, headers=[("land", b"a")])
    produce(bench, None)
    bench.extract()
    assert tables(bench) == {"d.a_de": [0], "d.a_none": [1], "d.kbq_errors": [2]}


def test_a_newer_schema_without_the_field_is_without_it_and_one_that_cannot_say_stops() -> None:
    bench = bench_of(settings_of("{field.x|none}"))
    produce(bench, framed(b"\x02", 1), order("de"), framed(b"\x02x", 4))
    bench.registry.schemas[11] = ORDER_WITH_LIST
    bench.extract()
    assert tables(bench) == {"d.1": [0], "d.none": [1], "d.x": [2]}
    produce(bench, framed(b"\x00", 11))
    report = bench.extract()
    [stop] = report.stops
    assert stop.reason == "unstageable_schema"
    assert "field 'x' cannot be part of a table's name" in stop.message


ORDER_WITH_LIST = (
    '{"type":"record","name":"L","fields":[{"name":"x","type":{"type":"array","items":"string"}}]}'
)


def test_json_documents_choose_by_their_columns_or_as_a_whole_by_headers() -> None:
    bench = Bench(settings_of("t_{field.a.b|none}", format="json_columns"))
    produce(bench, b'{"a": {"b": "X"}}', b'{"a": {"b": "y"}}', b'{"c": 1}', b"no json")
    bench.extract()
    assert tables(bench) == {"d.kbq_errors": [3], "d.t_none": [2], "d.t_x": [0], "d.t_y": [1]}
    bench = Bench(settings_of("t_{header.land}", format="json", tombstones="row"))
    produce(bench, b'{"a": 1}', None, headers=[("land", b"de")])
    bench.extract()
    assert tables(bench) == {"d.t_de": [0, 1]}


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([b'{"a": {"b": {"c": 1}}}', b'{"a": {"b": "y"}}'], [1, 2]),
        ([b'{"a": [1]}', b'{"a": 1.5}'], [1, 2]),
        ([b'{"a": {"x": 1}}', b'{"c": 1}'], [1, 2]),
        ([b'{"a": 7}', b'{"a": true}'], []),
    ],
)
def test_a_document_chooses_alone_whatever_types_others_have_there(
    others: list[bytes], found: list[int]
) -> None:
    for together in (True, False):
        bench = Bench(settings_of("t_{field.a}", format="json_columns"))
        for value in (b'{"a": "x"}', *others, b'{"a": "x"}'):
            produce(bench, value)
            if not together:
                assert not bench.extract().stops
        assert not bench.extract().stops
        rows = tables(bench)
        assert rows["d.t_x"] == [0, 3]
        assert rows.get("d.kbq_errors", []) == found
        assert found or (rows["d.t_7"], rows["d.t_true"]) == ([1], [2])


def test_a_document_s_key_is_also_found_by_the_name_of_its_column() -> None:
    bench = Bench(settings_of("t_{field.a_b.c|none}", format="json_columns"))
    produce(bench, b'{"a-b": {"c": "x"}}', b'{"a_b": {"c": "y"}}', b'{"a": 1}')
    bench.extract()
    assert tables(bench) == {"d.t_none": [2], "d.t_x": [0], "d.t_y": [1]}


def test_a_table_that_a_record_chose_takes_a_contradicting_schema_as_its_topic_says() -> None:
    bench = bench_of(settings_of("orders_{field.country}", on_incompatible="new_table_version"))
    fields = [{"name": "id", "type": "string"}, {"name": "country", "type": "string"}]
    other = {"type": "record", "name": "shop.Order", "fields": fields}
    bench.registry.schemas[12] = json.dumps(other)
    produce(bench, order("de"), framed(avro_body(other, {"id": "x", "country": "DE"}), 12), order("fr"))
    bench.extract()
    assert tables(bench) == {"d.orders_de": [0], "d.orders_de__v2": [1], "d.orders_fr": [2]}
