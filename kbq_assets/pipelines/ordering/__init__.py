"""Ordered tables: what happens between their batches, and what operators decide about them."""
