"""A campaign of kills while producers never stop: `make torture`. Its results are in docs/reliability.md.

producing  producers: transactions, aborts, several schema ids, JSON, poison, tombstones
lanes      runs of KBQ that are killed or stopped at random moments, one kind in each thread
counting   an independent reader: confluent_kafka and DuckDB, none of KBQ's code
"""
