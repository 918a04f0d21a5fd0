"""Topics of Debezium in a worker: change events become rows."""
