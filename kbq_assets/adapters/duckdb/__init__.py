"""A local warehouse: one DuckDB file with BigQuery's load-job semantics (PROTOCOL, A local warehouse).

::

    warehouse.py    DuckDbWarehouse, the port's adapter
    database.py     opening the file: the lock, waiting for it, errors
    load_jobs.py    the table of jobs
    load.py         staged files (wire/arrow) into a table, in bounded batches
    queries.py      error tables, and counts of offsets
    types.py        BigQuery's column types as DuckDB's

BigQuery's types become: INT64 BIGINT, FLOAT64 DOUBLE, BOOL BOOLEAN, STRING VARCHAR, BYTES BLOB, JSON JSON, DATE DATE,
TIME TIME, DATETIME TIMESTAMP, TIMESTAMP TIMESTAMPTZ (UTC), NUMERIC DECIMAL with the schema's precision and scale
(widened when schemas need more), STRUCT STRUCT, REPEATED T[]. DuckDB lacks two types: BIGNUMERIC and GEOGRAPHY are
stored as exact text (VARCHAR) and recorded in ``_kbq.kbq_types``. As in BigQuery, a map is a list of
STRUCT(key, value), and a union of several types is a STRUCT with one field set. A list is empty if the record has null.
Null elements stay NULL (BigQuery refuses them). NOT NULL applies only to whole columns; nested fields are NULLABLE.
Partitioning and clustering have no effect here.
"""

from kbq_assets.adapters.duckdb.warehouse import DuckDbWarehouse

__all__ = ["DuckDbWarehouse"]
