"""Ordered tables: the steps between their batches, and operators' decisions about batches."""
