"""Decides the order of a table's batches: which one is next, and what holds up the one after it."""
