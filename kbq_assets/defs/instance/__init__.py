"""Dagster's own instance: database, UI and daemon processes, history."""
