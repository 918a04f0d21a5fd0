"""Settings: embedded defaults, options under their own names, no silent typo, no secret shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.settings import parse_settings


def test_nothing_set_is_the_local_stack() -> None:
    settings = parse_settings({"PATH": "/bin"})
    assert settings.home == Path(".kbq").absolute()
    assert settings.kafka.bootstrap_servers == "127.0.0.1:39092"
    assert settings.registry.url == "http://127.0.0.1:38081/apis/ccompat/v7"
    assert settings.warehouse_url == f"duckdb:{settings.home / 'warehouse.duckdb'}"
    assert settings.spark.master == "local[*]"


def test_options_keep_their_own_names() -> None:
    settings = parse_settings(
        {
            "KBQ_KAFKA_SASL_MECHANISM": "PLAIN",
            "KBQ_SPARK_CONF_spark.executor.memory": "2g",
            "KBQ_LOCAL_KAFKA_PORT": "9",
        }
    )
    assert settings.kafka.options == {"sasl.mechanism": "PLAIN"}
    assert settings.spark.options == {"spark.executor.memory": "2g"}
    assert settings.kafka.bootstrap_servers == "127.0.0.1:9"


def test_a_typo_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match="did you mean KBQ_WAREHOUSE"):
        parse_settings({"KBQ_WAREHOSE": "secret-value"})


def test_a_malformed_number_is_refused_without_echoing_it() -> None:
    with pytest.raises(ConfigurationError, match="KBQ_RUN_SECONDS is not a whole number") as caught:
        parse_settings({"KBQ_RUN_SECONDS": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_secrets_are_not_in_the_representation() -> None:
    settings = parse_settings({"KBQ_REGISTRY_PASSWORD": "hunter2", "KBQ_REGISTRY_TOKEN": "hunter3"})
    assert "hunter" not in repr(settings.registry)
