"""Decides the order of a table's batches: which one is next, and what stops the one after it."""
