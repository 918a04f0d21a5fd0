"""Ranges that are read again beside the live topic (PROTOCOL, Replay)."""
