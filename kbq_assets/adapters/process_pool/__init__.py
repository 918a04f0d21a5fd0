"""Runs tasks in processes of this machine, without Spark and Java (ADR 21)."""
