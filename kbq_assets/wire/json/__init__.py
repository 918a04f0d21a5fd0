"""JSON values: the scanner kernel, and rows with inferred columns."""
