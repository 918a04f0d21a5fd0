"""Reads ranges again into shadow tables, while live extraction and loading continue (PROTOCOL, Replay)."""
