"""A lake's work on the `pyspark` resource: compaction's groups, and the files of large load jobs; and a backup's files
under an erasure."""

# Pydantic reads the annotations of fields: no postponed annotations here.

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import dagster as dg
from dagster_pyspark import PySparkResource

from kbq_assets.core.config.settings import Settings
from kbq_assets.defs.extraction.engine import open_spark
from kbq_assets.pipelines.compaction.compactor import Compactor
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.ports.backup_copies import RunCopies
from kbq_assets.ports.compaction import Rewriter
from kbq_assets.ports.load_tasks import RunTasks

#: Resource key, also the name of a parameter.
LAKE_SPARK: Final = "lake_spark"


class LakeSpark(dg.ConfigurableResource[PySparkResource]):
    """The `pyspark` resource of KBQ, under a key of KBQ's: a project may have a `pyspark` of its own."""

    pyspark: dg.ResourceDependency[PySparkResource]

    def create_resource(self, context: dg.InitResourceContext) -> PySparkResource:
        """The resource, which starts with the first large job or plan."""
        return self.pyspark


def compactor_of(deployment: Deployment) -> Compactor:
    """The compactor of a deployment, whose large plans start Spark."""
    return Compactor(deployment, lambda: _open_rewriter(deployment.settings))


@contextmanager
def _open_rewriter(settings: Settings) -> Iterator[Rewriter]:
    with open_spark(settings) as started:
        yield spark_rewriter(started, settings)


@contextmanager
def open_writer(settings: Settings) -> Iterator[RunTasks]:
    """Spark, for the large load jobs of one run."""
    with open_spark(settings) as started:
        yield spark_writer(started, settings)


@contextmanager
def open_copier(settings: Settings) -> Iterator[RunCopies]:
    """Spark, for the many files of a backup that an erasure writes again."""
    from kbq_assets.adapters.spark.tasks import SparkTasks
    from kbq_assets.worker.erasure import CopyOnWorker

    with open_spark(settings) as started:
        yield SparkTasks(
            lambda: started.spark_context, CopyOnWorker.of(settings), "an erasure in the backup of"
        )


def spark_rewriter(spark: PySparkResource, settings: Settings) -> Rewriter:
    """Groups as tasks on a resource's context. Raises ConfigurationError if the warehouse is no lake."""
    from kbq_assets.adapters.spark.tasks import SparkTasks
    from kbq_assets.worker.compaction import RewriteOnWorker

    return SparkTasks(lambda: spark.spark_context, RewriteOnWorker.of(settings), "a compaction of")


def spark_writer(spark: PySparkResource, settings: Settings) -> RunTasks:
    """Parts of a load job as tasks on a resource's context, which starts with the first job."""
    from kbq_assets.adapters.spark.tasks import SparkTasks
    from kbq_assets.worker.loading import WriteOnWorker

    return SparkTasks(lambda: spark.spark_context, WriteOnWorker.of(settings), "a load of")
