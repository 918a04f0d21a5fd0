"""Read-only views of state and broker: status, checks, pending work."""
