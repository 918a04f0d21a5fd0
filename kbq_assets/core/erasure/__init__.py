"""Erasure of persons: the records to erase, and the progress of an erasure."""
