"""Decides which bad records can be replayed, and how."""
