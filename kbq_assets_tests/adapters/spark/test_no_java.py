"""Where no Java is found, the message names the way without it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kbq_assets.adapters.spark.session import prepare_environment
from kbq_assets.core.config.parts import SparkSettings
from kbq_assets.core.errors import ConfigurationError


@pytest.mark.parametrize(("master", "is_offered"), [("local[2]", True), ("spark://host:7077", False)])
def test_a_machine_without_java_may_do_without_spark(
    master: str, is_offered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="no Java 17 or 21") as raised:
        prepare_environment(SparkSettings(master), tmp_path)
    assert ("KBQ_SPARK_MASTER=processes[*]" in raised.value.next_step) is is_offered
