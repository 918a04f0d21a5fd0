"""Reads ranges again into shadow tables, beside live extraction and loading (PROTOCOL, Replay)."""
