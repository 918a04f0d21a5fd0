"""JSON topics: declared schemas, inferred columns, exact numbers."""
