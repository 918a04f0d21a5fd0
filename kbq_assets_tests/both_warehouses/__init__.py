"""Promises that DuckDB and BigQuery keep alike: each test runs over both, DuckDB's file and local-bigquery."""
