"""Starts a session as every run does, so that its JVM archives the classes: ``… ARCHIVE FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kbq_assets.adapters.spark.session import QUICK_JVM, prepare_environment, spark_config
from kbq_assets.core.config.parts import SparkSettings


def main(archive: str, folder: str) -> int:
    """Write the archive and return the JVM's exit code."""
    # A session loads all classes that a context loads, and those of users' assets.
    builder = SparkSession.builder
    settings = SparkSettings(
        "local[1]", {"spark.driver.extraJavaOptions": f"{QUICK_JVM} -XX:ArchiveClassesAtExit={archive}"}
    )
    prepare_environment(settings, Path(folder))
    for key, value in spark_config(settings, Path(folder)).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    context = session.sparkContext
    for _ in range(2):
        context.parallelize([1], 1).map(str).collect()
    gateway: Any = context._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    return int(gateway.proc.wait())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
