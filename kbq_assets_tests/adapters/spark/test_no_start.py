"""A Spark that cannot start is an error that says where to look, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbq_assets_tests.fixtures.variables import Variables

_START = """
import sys
from pathlib import Path
from kbq_assets.adapters.spark.session import spark_context
from kbq_assets.core.config.parts import SparkSettings
from kbq_assets.core.errors import ConfigurationError
try:
    with spark_context(SparkSettings("local[1]"), Path(sys.argv[1])):
        pass
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "value", "why", "next_step"),
    [
        ("JAVA_TOOL_OPTIONS", "-javaagent:/none.jar", "JAVA_GATEWAY_EXITED", "Java's lines above"),
        (
            "SPARK_HOME",
            "/none",
            "'/none/./bin/spark-submit'",
            "unset SPARK_HOME (/none) unless that is Spark ",
        ),
    ],
)
def test_a_spark_that_cannot_start_says_what_to_check(
    name: str, value: str, why: str, next_step: str, tmp_path: Path, variables: Variables
) -> None:
    variables[name] = value
    done = subprocess.run(
        [sys.executable, "-c", _START, str(tmp_path)], capture_output=True, text=True, check=False
    )
    first, _, second = done.stdout.partition("\n")
    assert first.startswith("Spark does not start: ") and why in first, done.stderr
    assert next_step in second
