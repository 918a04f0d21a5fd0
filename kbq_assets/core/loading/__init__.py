"""Decides what a load does: table state, batches, quota, columns, completeness."""
