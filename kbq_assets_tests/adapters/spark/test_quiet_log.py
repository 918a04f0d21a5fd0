"""Spark's JVM logs only errors, unless the user's options configure its log."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from kbq_assets.adapters.spark.session import private_options

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
OWN = "-Dlog4j2.configurationFile=/mine.properties"


@pytest.mark.parametrize(("given", "theirs"), [("-Xmx1g", False), (f"-Xmx1g {OWN}", True), ("", False)])
def test_the_log_has_errors_alone_unless_options_configure_it(given: str, theirs: bool) -> None:
    with private_options({JAVA_OPTIONS: given}):
        arguments = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        folder = Path(arguments[arguments.index("--properties-file") + 1]).parent
        java = (folder / "java").read_text().splitlines()
        level = "rootLogger.level=error" in (folder / "log4j2.properties").read_text()
    own = [line for line in java if "log4j2" in line]
    assert level
    assert ("/mine.properties" in own[0], len(own)) == (theirs, 1)
