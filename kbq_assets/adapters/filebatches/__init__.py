"""Applies batches of files to a warehouse, one module per SDK."""
