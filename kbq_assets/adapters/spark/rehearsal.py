"""Starts a session as every run does, so that its JVM archives the classes. Arguments: ``ARCHIVE FOLDER``. Next to the
archive, writes the JVM's options and class path as Spark's scripts chose them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kbq_assets.adapters.java import VECTOR_MODULE
from kbq_assets.adapters.spark.classes import command_file
from kbq_assets.adapters.spark.session import EVENT_LOG, LOG4J, QUICK_JVM, prepare_environment, spark_config
from kbq_assets.core.config.parts import SparkSettings


def main(archive: str, folder: str) -> int:
    """Write the archive and return the JVM's exit code."""
    # A session loads all classes that a context loads, and also those that users' assets need.
    builder = SparkSession.builder
    chosen = {
        "spark.driver.extraJavaOptions": f"{QUICK_JVM} {shlex.quote(f'-XX:ArchiveClassesAtExit={archive}')}",
        EVENT_LOG: "true",
    }
    settings = SparkSettings("local[1]", chosen)
    prepare_environment(settings, Path(folder))
    for key, value in spark_config(settings, Path(folder)).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    context = session.sparkContext
    for _ in range(2):
        context.parallelize([1], 1).map(str).collect()
    gateway: Any = context._gateway
    runtime = gateway.jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    options = kept_options(runtime.getInputArguments())
    command_file(Path(archive)).write_text(json.dumps([*options, "-cp", runtime.getClassPath()]))
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    return int(gateway.proc.wait())


def kept_options(options: Iterable[str]) -> list[str]:
    """The options that Spark's scripts chose, without KBQ's own, and without the module of MLlib: Java's warning about
    it would break progress bars."""
    own = (*shlex.split(QUICK_JVM), "-XX:ArchiveClassesAtExit=", f"-D{LOG4J}=")
    return [each for each in options if not each.startswith((*own, f"--add-modules={VECTOR_MODULE}"))]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
