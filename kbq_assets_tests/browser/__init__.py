"""Dagster's UI as a person sees it: a real browser on the demo's real state."""
