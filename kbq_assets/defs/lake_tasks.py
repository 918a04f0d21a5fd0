"""The Spark resource of a lake's loads and compactions."""

# No postponed annotations here: Pydantic reads the annotations of fields.

from typing import Final

import dagster as dg
from dagster_pyspark import PySparkResource

#: Resource key, also the name of a parameter.
LAKE_SPARK: Final = "lake_spark"


class LakeSpark(dg.ConfigurableResource[PySparkResource]):
    """KBQ's `pyspark` resource under a key of its own, because a project may have its own `pyspark`."""

    pyspark: dg.ResourceDependency[PySparkResource]

    def create_resource(self, context: dg.InitResourceContext) -> PySparkResource:
        """The resource. Spark starts with the first large job or plan."""
        return self.pyspark
