"""Two small topics on the local broker, for a first try: orders in Avro, clicks in JSON."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from typing import Any, Final

import fastavro
from confluent_kafka import Producer

from kbq_assets.adapters.kafka.admin import KafkaTopicAdmin
from kbq_assets.adapters.registry import ConfluentSchemaRegistry, ConfluentSubjects
from kbq_assets.core.catalog.changes import CreateTopic
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import Unavailable

ORDERS, CLICKS = "shop.orders", "shop.clicks"
_PARTITIONS: Final = 2
#: 2026-01-01, then one record every ten seconds.
_FIRST_MS, _STEP_MS = 1_767_225_600_000, 10_000
_COUNTRIES: Final = ("FR", "DE", "ES", "IT")
_ORDER: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "order_id", "type": "long", "doc": "Number of the order."},
        {"name": "customer", "type": "string", "doc": "Who ordered."},
        {"name": "country", "type": "string", "doc": "Where it goes."},
        {"name": "cents", "type": "long", "doc": "Total, in cents."},
        {"name": "ordered_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def produce_sample(settings: Settings, records: int) -> tuple[str, str]:
    """Create both topics if they are missing, and append records to them; returns their names. Raises Unavailable."""
    admin = KafkaTopicAdmin(settings.kafka.bootstrap_servers, settings.kafka.options)
    for topic in (ORDERS, CLICKS):
        admin.apply(CreateTopic(topic, _PARTITIONS, 1, {}))
    subjects = ConfluentSubjects(ConfluentSchemaRegistry(settings.registry))
    schema_id = subjects.register(f"{ORDERS}-value", json.dumps(_ORDER), "AVRO")
    parsed = fastavro.parse_schema(_ORDER)
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    _append(producer, ORDERS, records, lambda number: _order(number, parsed, schema_id))
    _append(producer, CLICKS, records, _click)
    if producer.flush(60):
        raise Unavailable("the broker did not take all records in a minute", next_step="kbq local status")
    return ORDERS, CLICKS


def _append(producer: Producer, topic: str, records: int, value: Callable[[int], bytes]) -> None:
    for number in range(records):
        producer.produce(topic, value(number), key=str(number % 97), timestamp=_FIRST_MS + number * _STEP_MS)
        if number % 10_000 == 0:
            producer.poll(0)


def _order(number: int, schema: Any, schema_id: int) -> bytes:
    out = io.BytesIO()
    out.write(struct.pack(">bI", 0, schema_id))
    at = _FIRST_MS + number * _STEP_MS
    row = {"order_id": number, "customer": f"customer-{number % 97}", "country": _COUNTRIES[number % 4]}
    fastavro.schemaless_writer(out, schema, {**row, "cents": 100 + number * 7 % 9_900, "ordered_at": at})
    return out.getvalue()


def _click(number: int) -> bytes:
    click = {"id": number, "page": f"/items/{number % 13}", "customer": f"customer-{number % 97}"}
    return json.dumps({**click, "at": (_FIRST_MS + number * _STEP_MS) / 1000}).encode()
