"""Dagster: asset checks."""
