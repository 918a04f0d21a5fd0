"""Dagster: warehouse tables, their datasets and complete hours."""
