"""Programs that load the workers' code once, and then fork workers."""
