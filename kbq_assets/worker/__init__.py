"""The inside of a Spark task: one unit of extraction, and the adapters it needs. Never imports Dagster.

unit      reads one range, writes its windows' files, and returns the outcome (PROTOCOL E3)
window    one window being written
routes    schema id -> table and staged schema
task      the entry point that Spark calls: builds the adapters from settings, once per worker process
"""
