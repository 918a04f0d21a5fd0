"""Statements: apply loaded batches to their tables with SQL, each exactly once."""
