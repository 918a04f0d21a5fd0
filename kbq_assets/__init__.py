"""KBQ: Kafka topics into BigQuery, or a local warehouse, exactly once."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`KafkaTopics`, Dagster's component, imported when Dagster asks for it: workers need no Dagster."""
    if name == "KafkaTopics":
        from kbq_assets.component import KafkaTopics

        return KafkaTopics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """`dg` looks for components among a module's names."""
    return [*globals(), "KafkaTopics"]
