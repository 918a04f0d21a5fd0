"""Iceberg tables with BigQuery's load-job semantics: a load job is one snapshot (docs/iceberg.md, decision 0017).

::

    warehouse.py    IcebergWarehouse, the port's adapter
    connect.py      an address and its catalog
    lake.py         the catalog: opening it, finding tables, its errors
    types.py        BigQuery's column types as Iceberg's
    schema.py       tables: columns, notes, partitions, their evolution
    job_records.py  the jobs of a table, in its properties: pure
    load_jobs.py    which jobs of a table have ended
    writer.py       staged Avro to rows of a table
    parquet_files.py  rows to Parquet files, one per partition
    tasks.py        the same in tasks of a large job, and the job that collects their files
    spill.py        rows of many partitions, until each is written
    commits.py      one snapshot per job, and nothing else
    compaction.py   a table's files, and the commit that replaces some of them
    rewrite.py      many data files into one
    rewrites.py     data files again without some rows
    data_files.py   the rows of data files, and the files that have certain rows
    erasure.py      rows that are forgotten
    replay.py       ranges that are replaced, a commit of each table
    replayed_rows.py  counts and differences of ranges
    housekeeping.py expiry of snapshots, and orphans
    metadata_files.py  the newest metadata file of each table, for other readers
    queries.py      positions, summaries and error rows
"""

from kbq_assets.adapters.iceberg.connect import open_lake
from kbq_assets.adapters.iceberg.warehouse import IcebergWarehouse

__all__ = ["IcebergWarehouse", "open_lake"]
