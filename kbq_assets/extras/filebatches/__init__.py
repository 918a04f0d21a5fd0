"""Batches of files: commands and Dagster assets."""
