"""Change events of Debezium: names of their columns, and detection of their schemas."""
