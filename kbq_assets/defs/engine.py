"""Spark through dagster-pyspark: a session that starts for the first unit and ends with the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from kbq_assets.core.settings import Settings
from kbq_assets.core.units import Unit, UnitOutcome
from kbq_assets.ports.engine import ExtractionEngine

#: Resource keys. Tests replace `ENGINE`; another way to start Spark replaces `PYSPARK`.
PYSPARK = "pyspark"
ENGINE = "extraction_engine"


class OnDemandEngine:
    """An ExtractionEngine that is opened for the first unit: a run with nothing to read starts no JVM."""

    def __init__(self, open_engine: Callable[[], ExtractionEngine]) -> None:
        self._open = open_engine

    @cached_property
    def _engine(self) -> ExtractionEngine:
        return self._open()

    @property
    def idle_slots(self) -> int:
        """How many more tasks would start at once."""
        return self._engine.idle_slots

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Start a task."""
        self._engine.submit(units)

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """Outcomes of the tasks that have ended."""
        return self._engine.next_outcomes(timeout_seconds)


class LocalPySpark(LazyPySparkResource):
    """dagster-pyspark's resource, quieter, and with an end."""

    def _init_session(self) -> None:
        if self._spark_session is None:
            super()._init_session()
            self.spark_context.setLogLevel("ERROR")

    def stop(self) -> None:
        """Stop the session, if one was started."""
        if self._spark_session is not None:
            self._spark_session.stop()


def pyspark_resource(settings: Settings) -> dg.ResourceDefinition:
    """The Spark session of a run. Its configuration may name credentials: none of it is shown in the UI."""

    @dg.resource(description="Spark, configured by KBQ_SPARK_* variables; starts when it is first used.")
    def pyspark(context: dg.InitResourceContext) -> Iterator[LazyPySparkResource]:
        from kbq_assets.adapters.spark.session import prepare_environment, spark_config

        prepare_environment(settings.home, settings.spark.master)
        spark = LocalPySpark(spark_config=spark_config(settings.spark, settings.home))
        try:
            yield spark
        finally:
            spark.stop()

    return pyspark


def engine_resource(settings: Settings) -> dg.ResourceDefinition:
    """The extraction engine: units as tasks of the `pyspark` resource's session."""

    @dg.resource(required_resource_keys={PYSPARK}, description="Runs units of extraction as Spark tasks.")
    def extraction_engine(context: dg.InitResourceContext) -> ExtractionEngine:
        spark: LazyPySparkResource = getattr(context.resources, PYSPARK)

        def open_engine() -> ExtractionEngine:
            from kbq_assets.adapters.spark.engine import SparkEngine
            from kbq_assets.worker.task import UnitTask

            if context.log is not None:
                context.log.info(f"starting Spark ({settings.spark.master})")
            return SparkEngine(spark.spark_session, UnitTask(settings))

        return OnDemandEngine(open_engine)

    return extraction_engine
