"""State objects in the object store: read, create, swap, cache."""
