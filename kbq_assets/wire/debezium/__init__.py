"""Converts Debezium's change events to rows, from bytes to bytes."""
