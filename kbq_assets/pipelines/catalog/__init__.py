"""The catalog as pipelines use it: topics to extract, datasets, schemas."""
