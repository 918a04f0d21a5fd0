"""The Dagster instance: database, UI and daemon processes, history."""
