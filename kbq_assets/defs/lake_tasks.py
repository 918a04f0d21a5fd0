"""A lake's Spark in Dagster."""

# Pydantic reads the annotations of fields: no postponed annotations here.

from typing import Final

import dagster as dg
from dagster_pyspark import PySparkResource

#: Resource key, also the name of a parameter.
LAKE_SPARK: Final = "lake_spark"


class LakeSpark(dg.ConfigurableResource[PySparkResource]):
    """The `pyspark` resource of KBQ, under a key of KBQ's: a project may have a `pyspark` of its own."""

    pyspark: dg.ResourceDependency[PySparkResource]

    def create_resource(self, context: dg.InitResourceContext) -> PySparkResource:
        """The resource, which starts with the first large job or plan."""
        return self.pyspark
