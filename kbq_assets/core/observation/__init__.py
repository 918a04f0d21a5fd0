"""Checks, and totals of runs."""
