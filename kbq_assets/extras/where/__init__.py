"""Shows where a record is now: in Kafka, in a staged file, in a table, in quarantine."""
