"""Kafka keys as columns."""
