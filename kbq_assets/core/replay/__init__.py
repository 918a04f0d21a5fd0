"""Replays: ranges that are read again while the topic continues (PROTOCOL, Replay)."""
