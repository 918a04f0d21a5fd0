"""Decisions: names, offsets, commits, planning, loading state, errors. Standard library only, no I/O."""
