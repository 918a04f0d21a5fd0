"""Applies batches of files in a warehouse, one module per SDK."""
