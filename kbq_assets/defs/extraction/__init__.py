"""Dagster: extraction assets, with the engine resource, backfills, reprocessing and metadata."""
