"""Dagster: compaction."""
