"""Change events of Debezium: what their rows and types are called."""
