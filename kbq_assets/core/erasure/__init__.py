"""Erasure of persons: which records are forgotten, and how far that is."""
