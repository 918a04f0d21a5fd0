"""The options of Kafka keys."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.topics.declaration import option
from kbq_assets.core.topics.option_types import FLAG, choice


@dataclass(frozen=True)
class KeyOptions:
    """How record keys are stored as columns."""

    as_bytes: bool = option("false", FLAG, "add `_kafka_key` (bytes)", name="keys", place="records.keys")
    format: str = option(
        "bytes",
        choice("bytes", "avro", "json", "protobuf", "text"),
        "[decode keys](catalog.md#keys) into the column `_key`; `bytes`: do not decode",
        name="key_format",
        place="records.key_format",
    )

    @property
    def are_decoded(self) -> bool:
        """Whether there is a column `_key`."""
        return self.format != "bytes"

    @property
    def are_stored(self) -> bool:
        return self.as_bytes or self.are_decoded
