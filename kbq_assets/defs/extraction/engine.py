"""Spark through dagster-pyspark: a session that starts for the first unit and ends with the run."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from kbq_assets.core.config.settings import Settings
from kbq_assets.ports.engine import ExtractionEngine, OnDemandEngine

#: Resource keys. Tests replace `ENGINE`; another way to start Spark replaces `PYSPARK`.
PYSPARK = "pyspark"
ENGINE = "extraction_engine"


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
        from kbq_assets.worker import daemon

        prepare_environment(settings.spark, settings.home)
        spark = LocalPySpark(spark_config=spark_config(settings.spark, settings.home, daemon.MODULE))
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

            task = UnitTask(settings)
            if context.log is not None:
                context.log.info(f"starting Spark ({settings.spark.master})")
            return SparkEngine(spark.spark_context, task)

        return OnDemandEngine(open_engine)

    return extraction_engine
