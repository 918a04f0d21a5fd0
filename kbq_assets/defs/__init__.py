"""KBQ in Dagster. This layer only translates: the pipelines find the pending work, decide, and report."""
