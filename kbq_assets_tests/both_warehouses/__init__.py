"""Behavior that DuckDB and BigQuery share: each test runs over a DuckDB file and over local-bigquery."""
