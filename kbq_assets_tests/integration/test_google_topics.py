"""Topics of every kind in BigQuery: formats, personal data, schemas that change. Against local servers; Kafka, the
registry and Spark are fakes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.definitions import parts
from kbq_assets.worker.unit import WorkerPorts
from kbq_assets_tests.adapters.protobuf.messages import ORDER, order
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.fakes.platform import FakePlatform, with_ports
from kbq_assets_tests.google.servers import QUIET_PROJECT, BigQueryServer, GcsServer
from kbq_assets_tests.wire.samples import avro_body, framed, record_of

pytestmark = [pytest.mark.thorough, pytest.mark.google]

PSEUDONYMS = Pseudonyms("k", {"k": b"k" * 32})
PERSON = record_of(("email", "string"), ("n", "int"))
#: Schemas of one topic, by id: as it began, with a field more, and two that contradict these.
LONG, MORE, TEXT, INNER = range(1, 5)
CHANGING: Mapping[int, dict[str, Any]] = {
    LONG: record_of(("x", "long"), ("in", record_of(("a", "long"), name="In"))),
    MORE: record_of(("x", "long"), ("in", record_of(("a", "long"), ("b", "string"), name="In"))),
    TEXT: record_of(("x", "string"), ("in", record_of(("a", "long"), name="In"))),
    INNER: record_of(
        ("x", "long"), ("in", record_of(("a", {"type": "array", "items": "double"}), name="In"))
    ),
}


class World:
    """Topics, and one dataset of a local BigQuery."""

    def __init__(
        self, gcs: GcsServer, bigquery: BigQueryServer, folder: Path, topics: Mapping[str, str]
    ) -> None:
        self._bigquery, self._dataset = bigquery, bigquery.new_dataset(QUIET_PROJECT)
        lines = [f"{topic} dataset={self._dataset} {options}\n" for topic, options in topics.items()]
        self.fakes = FakePlatform(folder, sources="".join(lines))
        for topic in topics:
            self.fakes.kafka.create_topic(topic, 1)
        found = parts(
            {
                "KBQ_HOME": str(folder),
                "KBQ_SOURCE_TOPICS": str(self.fakes.source_topics),
                "KBQ_STAGING": f"gs://{gcs.new_bucket()}/staging",
                "KBQ_GCS_ENDPOINT": gcs.endpoint,
                "KBQ_EXTRACT_CREDENTIALS": "anonymous",
                "KBQ_LOAD_CREDENTIALS": "anonymous",
                "KBQ_WAREHOUSE": f"bigquery://{QUIET_PROJECT}?location=US",
                "KBQ_BIGQUERY_ENDPOINT": bigquery.endpoint,
                "KBQ_POLL_SECONDS": "1",
                "KBQ_QUIET_SECONDS": "0",
            }
        )
        kafka = self.fakes.kafka
        worker = WorkerPorts(
            found.deployment.store,
            kafka,
            self.fakes.registry,
            self.fakes.clock,
            pseudonyms=lambda: PSEUDONYMS,
        )
        self._engine = InProcessEngine(worker)
        self._parts = with_ports(found, offsets=lambda: kafka, source=lambda: kafka, worker=lambda: worker)

    def produce(self, topic: str, *values: bytes) -> None:
        """Append records to the topic's partition."""
        for value in values:
            self.fakes.kafka.produce(TopicPartition(topic, 0), value, timestamp=86_400_000)

    def cycle(self) -> None:
        """One extraction and one load: everything lands once."""
        report = self._parts.extractor.extract(self._engine)
        assert (report.stops, report.failures, report.totals.errors) == ((), {}, 0)
        loaded = self._parts.loader.load()
        assert [(t.state, t.message) for t in loaded.tables] == [("idle", "")] * len(loaded.tables)
        assert self._parts.reconciler.reconcile().accounted

    def rows(self, columns: str, table: str) -> list[tuple[Any, ...]]:
        """What a query finds, by offset."""
        query = f"SELECT {columns} FROM `{QUIET_PROJECT}.{self._dataset}.{table}` ORDER BY _kafka_offset"
        return [tuple(row.values()) for row in self._bigquery.client().query(query).result()]


def changing(schema_id: int, **fields: Any) -> bytes:
    return framed(avro_body(CHANGING[schema_id], fields), schema_id)


def test_json_protobuf_and_personal_data_become_rows_of_bigquery(
    gcs_server: GcsServer, bigquery_server: BigQueryServer, tmp_path: Path
) -> None:
    world = World(
        gcs_server,
        bigquery_server,
        tmp_path,
        {
            "clicks": "table=clicks format=json_columns",
            "orders": "table=orders format=protobuf event_date=at",
            "people": "table=people pii=email:pseudonym",
        },
    )
    world.fakes.kafka.chunk_records = 1  # columns are found in the first document
    documents = [{"id": 1, "who": {"name": "a"}, "tags": ["x", "y"]}, {"id": "two", "open": True}]
    world.produce("clicks", *(json.dumps(document).encode() for document in documents))
    world.fakes.registry.messages = {7: ORDER}
    message = order(id=7, state=1)
    message.at.FromJsonString("2025-01-31T23:30:00Z")
    world.produce("orders", framed(b"\x02\x02" + message.SerializeToString(), 7))
    world.fakes.registry.schemas[8] = json.dumps(PERSON)
    world.produce("people", framed(avro_body(PERSON, {"email": "a@example.com", "n": 5}), 8))
    world.cycle()
    first, second = world.rows("id, who.name, tags, open, _kbq_rest", "clicks")
    assert first == (1, "a", ["x", "y"], None, None)
    assert second == (None, None, [], True, {"id": "two"})
    assert world.rows("id, state, CAST(event_date AS STRING)", "orders") == [(7, "PAID", "2025-01-31")]
    assert world.rows("email, n", "people") == [(PSEUDONYMS.of("email", b"a@example.com"), 5)]


@pytest.mark.slow  # a minute of local-bigquery; DuckDB shows the same in test_evolution.py
def test_a_schema_that_changes_has_its_columns_in_the_cycle_that_first_sees_it(
    gcs_server: GcsServer, bigquery_server: BigQueryServer, tmp_path: Path
) -> None:
    policies = {"beside": "variant_column", "anew": "new_table_version"}
    options = {name: f"table={name} on_incompatible={policy}" for name, policy in policies.items()}
    world = World(gcs_server, bigquery_server, tmp_path, options)
    world.fakes.registry.schemas = {number: json.dumps(schema) for number, schema in CHANGING.items()}
    long = changing(LONG, x=1, **{"in": {"a": 1}})
    more = changing(MORE, x=2, **{"in": {"a": 2, "b": "b"}})
    text = changing(TEXT, x="three", **{"in": {"a": 3}})
    inner = changing(INNER, x=4, **{"in": {"a": [4.5]}})
    for values in ([long], [more, text, long, inner]):
        for topic in policies:
            world.produce(topic, *values)
        world.cycle()
    columns = "x, x__string, `in`.a, `in`.b, `in`.a__repeated_float64"
    assert world.rows(columns, "beside") == [
        (1, None, 1, None, []),
        (2, None, 2, "b", []),
        (None, "three", 3, None, []),
        (1, None, 1, None, []),
        (4, None, None, None, [4.5]),
    ]
    assert world.rows("x, `in`.a, `in`.b", "anew") == [(1, 1, None), (2, 2, "b"), (1, 1, None)]
    assert world.rows("x, `in`.a", "anew__v2") == [("three", 3)]
    assert world.rows("x, `in`.a", "anew__v3") == [(4, [4.5])]
