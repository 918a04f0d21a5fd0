"""Decides which bad records can be replayed."""
