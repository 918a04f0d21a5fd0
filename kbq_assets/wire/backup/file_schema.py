"""The Avro schema of backup files: one record type for all topics, regardless of their values."""

from __future__ import annotations

import json
from typing import Final

#: The fields that start with an underscore are also columns of tables and error rows.
FIELDS: Final = (
    {"name": "_kbq_epoch", "type": "long"},
    {"name": "_kafka_partition", "type": "long"},
    {"name": "_kafka_offset", "type": "long"},
    {"name": "_kafka_timestamp", "type": "long"},
    {"name": "timestamp_type", "type": "long"},
    {"name": "leader_epoch", "type": "long"},
    {"name": "key", "type": ["null", "bytes"]},
    {"name": "value", "type": ["null", "bytes"]},
    {
        "name": "headers",
        "type": {
            "type": "array",
            "items": {
                "type": "record",
                "name": "Header",
                "fields": [
                    {"name": "key", "type": "string"},
                    {"name": "value", "type": ["null", "bytes"]},
                ],
            },
        },
    },
    # The headers in Kafka's encoding, if a header name is not UTF-8.
    {"name": "raw_headers", "type": ["null", "bytes"]},
)
SCHEMA: Final = json.dumps(
    {"type": "record", "name": "KafkaRecord", "fields": list(FIELDS)}, separators=(",", ":")
)
