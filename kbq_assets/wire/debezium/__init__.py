"""Change events of Debezium, from bytes to bytes."""
