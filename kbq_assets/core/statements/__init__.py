"""Statements: SQL that applies a loaded batch to its table, and the ledger that says which batches took effect."""
