"""Statements: SQL that applies a loaded batch to its table, and the ledger that records which batches took effect."""
