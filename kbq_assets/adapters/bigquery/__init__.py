"""BigQuery: tables, and load jobs whose ids cannot run twice (PROTOCOL, Loading).

::

    warehouse.py    BigQueryWarehouse, the port's adapter
    connect.py      from `bigquery://project?location=EU` to a client
    session.py      calls that several modules share
    load_jobs.py    a job's request, and the meaning of its status
    outcomes.py     maps responses and timeouts of the API to KBQ's errors: the table of outcomes
    schema.py       columns and tables in the API's form
    catalog.py      creating, changing and listing tables
    probe.py        loading into a scratch table
    queries.py      the queries, whose values are always parameters

Loads on the shared slot pool are free. These quotas matter: 1,500 jobs per table and day, including failed ones;
100,000 jobs per project and day; 10,000 URIs and 15 TB per job; 4,000 partitions per job; 5 updates of a table's
metadata per 10 seconds (https://cloud.google.com/bigquery/quotas).
"""

from kbq_assets.adapters.bigquery.connect import open_bigquery
from kbq_assets.adapters.bigquery.warehouse import BigQueryWarehouse

__all__ = ["BigQueryWarehouse", "open_bigquery"]
