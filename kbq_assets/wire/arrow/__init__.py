"""Staged Avro files as Arrow tables, for warehouses that KBQ writes itself.

::

    staged.py       files to tables in bounded batches, verified while read
    container.py    blocks of an Avro container file, strictly
    decode.py       blocks to Arrow, with the types of a table's columns
    kernel.py       flat records, compiled; everything else by fastavro
    convert.py      numbers to dates, times and decimals
    types.py        BigQuery's column types in Arrow
    errors.py       what ends a load job
"""
