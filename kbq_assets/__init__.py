"""KBQ: Kafka topics into BigQuery, or a local warehouse, exactly once."""
