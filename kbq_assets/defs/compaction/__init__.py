"""Dagster: compaction of lake tables."""
