"""Replays bad records, so they become rows after all."""
