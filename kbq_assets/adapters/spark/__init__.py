"""Spark, through PySpark: the session, and units of extraction as tasks."""
