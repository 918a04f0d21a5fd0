"""Spark's configuration and context: only the options that KBQ needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import py4j.protocol
from pyspark import SparkConf, SparkContext

from kbq_assets.adapters.java import find_java
from kbq_assets.adapters.spark.classes import archive_options
from kbq_assets.adapters.spark.environment import FOLDER, PYTHON
from kbq_assets.core.config.parts import SparkSettings

_LOOPBACK = "127.0.0.1"
#: No record passes through a JVM: it is short-lived and does little, so the quick compiler and the serial collector
#: suit it. The driver's young generation holds all the garbage of a short run.
#: Measured: start and stop take half the processor time, 8 s instead of 15.
_QUICK_EXECUTOR = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_JVM = f"{_QUICK_EXECUTOR} -Xmn320m"


def spark_config(settings: SparkSettings, home: Path, daemon: str = "") -> dict[str, str]:
    """Spark's configuration for KBQ; the user's options win.

    ``daemon`` is the module that forks Python workers. It is used only if workers have it: with a local master, or with
    the archive of `environment.write_environment`.
    """
    events = home / "spark-events"
    events.mkdir(parents=True, exist_ok=True)
    config = {
        "spark.master": settings.master,
        "spark.app.name": "kbq",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.showConsoleProgress": "false",
        # One machine has Dagster's UI and `kbq status`; a cluster's operators look for an application here.
        "spark.ui.enabled": str(not _is_local(settings)).lower(),
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join([QUICK_JVM, *archive_options(find_java(home / "java"))]),
        "spark.executor.extraJavaOptions": _QUICK_EXECUTOR,
        # Workers multiply no matrices: numpy's idle threads would only cost time.
        "spark.executorEnv.OMP_NUM_THREADS": "1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.sql.warehouse.dir": (home / "spark-warehouse").as_uri(),
    }
    if _is_local(settings):
        config |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    if daemon and (_is_local(settings) or _is_packed(settings)):
        config["spark.python.daemon.module"] = daemon
    return config | dict(settings.options)


def prepare_environment(settings: SparkSettings, home: Path) -> None:
    """Choose the Java and the Python that Spark starts. Call it before the JVM starts. Raises ConfigurationError.

    Spark reads both from the environment only. Workers run the archive's Python or this interpreter.
    PYSPARK_PYTHON names another one, for clusters whose hosts have it elsewhere.
    """
    os.environ["JAVA_HOME"] = str(find_java(home / "java").home)
    os.environ.setdefault(
        "SPARK_LAUNCHER_OPTS", _QUICK_EXECUTOR
    )  # for the JVM that builds the driver's command
    os.environ.setdefault("PYSPARK_PYTHON", PYTHON if _is_packed(settings) else sys.executable)
    if _is_local(settings):
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)


def _is_local(settings: SparkSettings) -> bool:
    return settings.master.startswith("local")


def _is_packed(settings: SparkSettings) -> bool:
    """Whether the archive of `kbq pack` is shipped with the job."""
    archives = settings.options.get("spark.archives", "").split(",")
    return not _is_local(settings) and any(archive.endswith(f"#{FOLDER}") for archive in archives)


@contextmanager
def spark_context(settings: SparkSettings, home: Path, daemon: str = "") -> Iterator[SparkContext]:
    """A context for one run, stopped after it. A SQL session would take twice the time to start."""
    prepare_environment(settings, home)
    config = SparkConf().setAll(list(spark_config(settings, home, daemon).items()))
    with _without_numpy_arguments():
        context = SparkContext.getOrCreate(config)
        context.setLogLevel("ERROR")
        try:
            yield context
        finally:
            context.stop()


@contextmanager
def _without_numpy_arguments() -> Iterator[None]:
    """Remove the converters for numpy: for each argument they import PySpark's test tools and pandas (ADR 13)."""
    converters: list[Any] = py4j.protocol.INPUT_CONVERTER
    kept = list(converters)
    converters[:] = [each for each in kept if not type(each).__name__.startswith("Numpy")]
    try:
        yield
    finally:
        converters[:] = kept
