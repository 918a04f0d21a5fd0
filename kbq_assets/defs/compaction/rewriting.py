"""Compaction's tasks on the `pyspark` resource."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dagster_pyspark import PySparkResource

from kbq_assets.core.config.settings import Settings
from kbq_assets.pipelines.compaction.compactor import Compactor
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.ports.compaction import Rewriter


def compactor_of(deployment: Deployment) -> Compactor:
    """The compactor of a deployment, whose large plans start Spark."""
    return Compactor(deployment, lambda: open_rewriter(deployment.settings))


@contextmanager
def open_rewriter(settings: Settings) -> Iterator[Rewriter]:
    """Spark, for one compaction."""
    from kbq_assets.defs.extraction.engine import KbqPySpark

    with KbqPySpark(settings=settings).process_config_and_initialize_cm() as started:
        yield spark_rewriter(started, settings)


def spark_rewriter(spark: PySparkResource, settings: Settings) -> Rewriter:
    """Groups as tasks on a resource's context. Raises ConfigurationError if the warehouse is no lake."""
    from kbq_assets.adapters.spark.rewriting import SparkRewriter
    from kbq_assets.worker.compaction import RewriteOnWorker

    return SparkRewriter(spark.spark_context, RewriteOnWorker.of(settings))
