"""Compaction of lake tables: which files to merge, and whether the result may be committed."""
