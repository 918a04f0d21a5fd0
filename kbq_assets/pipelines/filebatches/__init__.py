"""Applies batches of files: read states, list the source, plan, swap, submit."""
