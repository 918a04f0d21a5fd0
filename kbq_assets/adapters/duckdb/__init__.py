"""A local warehouse: one DuckDB file with BigQuery's load-job semantics (PROTOCOL, A local warehouse).

::

    warehouse.py    DuckDbWarehouse, the port's adapter
    database.py     opening the file: the lock, its wait, its errors
    jobs.py         the table of jobs
    load.py         staged files into a table, in bounded batches
    container.py    blocks of an Avro container file, strictly
    decode.py       blocks to Arrow, in the shape of the table's columns
    error_rows.py   reading error tables
    types.py        BigQuery's column types as DuckDB's and Arrow's

How BigQuery's types are kept: INT64 BIGINT, FLOAT64 DOUBLE, BOOL BOOLEAN, STRING VARCHAR, BYTES BLOB, JSON
JSON, DATE, TIME, DATETIME TIMESTAMP, TIMESTAMP TIMESTAMPTZ (UTC), NUMERIC DECIMAL(38, 9), STRUCT STRUCT,
REPEATED T[]. DuckDB has no type for two: BIGNUMERIC and GEOGRAPHY are exact text (VARCHAR), noted in
``_kbq.kbq_types``. A map is a list of STRUCT(key, value), a union of several types a STRUCT of which one
field is set, as in BigQuery. A list is empty where the record has null; elements that are null stay NULL
(BigQuery refuses them). NOT NULL holds for whole columns; nested fields are NULLABLE. Partitioning,
clustering and labels mean nothing here.
"""

from kbq_assets.adapters.duckdb.warehouse import DuckDbWarehouse

__all__ = ["DuckDbWarehouse"]
