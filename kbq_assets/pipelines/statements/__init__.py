"""Statements: applies loaded batches to their tables by SQL, each once."""
