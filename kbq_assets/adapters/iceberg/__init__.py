"""Iceberg tables with BigQuery's load-job semantics: a load job is one snapshot (docs/iceberg.md, decision 0017).

::

    warehouse.py    IcebergWarehouse, the port's adapter
    connect.py      from an address to a catalog
    lake.py         the catalog: opening it, finding tables, errors
    types.py        BigQuery's column types as Iceberg's
    schema.py       tables: columns, notes, partitions, their evolution
    job_records.py  the jobs of a table, in its properties (pure functions)
    load_jobs.py    finds out which jobs of a table have ended, and commits jobs
    writer.py       staged Avro to rows of a table
    parquet_files.py  rows to Parquet files, one per partition
    tasks.py        the same in the tasks of a large job, and the collection of their files
    spill.py        holds rows of many partitions until each partition is written
    commits.py      one snapshot per job
    manifests.py    reads manifests completely
    compaction.py   a table's files, and the commit that replaces some of them
    rewrite.py      merges many data files into one
    rewrites.py     rewrites data files without some of their rows
    data_files.py   the rows of data files, and the files that have certain rows
    erasure.py      deletes the rows of an erasure
    replay.py       replaces ranges, with one commit per table
    replayed_rows.py  counts and differences of ranges
    housekeeping.py expiry of snapshots, and deletion of orphans
    metadata_files.py  the newest metadata file of each table, for other readers
    queries.py      positions, summaries and error rows
"""

from kbq_assets.adapters.iceberg.connect import open_lake
from kbq_assets.adapters.iceberg.warehouse import IcebergWarehouse

__all__ = ["IcebergWarehouse", "open_lake"]
