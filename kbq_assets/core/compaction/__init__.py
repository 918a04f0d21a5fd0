"""Compaction of lake tables: which files become one, and whether the result may be committed."""
