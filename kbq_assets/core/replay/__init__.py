"""Ranges that are read again while the topic goes on (PROTOCOL, Replay)."""
