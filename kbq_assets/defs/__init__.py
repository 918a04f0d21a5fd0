"""KBQ in Dagster. This layer only translates: the pipelines find pending work, decide, and report."""
