"""Spark through PySpark: its context, and units of extraction as tasks."""
