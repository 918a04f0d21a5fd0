"""Spark through PySpark: its context, and an engine that runs units of extraction as tasks."""
