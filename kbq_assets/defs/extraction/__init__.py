"""Dagster: the engine resource, backfills, reprocessing and metadata of extractions."""
