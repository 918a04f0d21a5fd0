"""JSON values: the scanner kernel and rows of inferred columns."""
