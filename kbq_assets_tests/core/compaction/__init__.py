"""Compaction of lake tables."""
