"""The catalog for pipelines: topics to extract, datasets, schemas."""
