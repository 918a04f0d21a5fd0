"""Reads ranges again into shadow tables, while live extraction and loading go on (PROTOCOL, Replay)."""
