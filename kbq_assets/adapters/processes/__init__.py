"""Long-running child processes: daemons, advisory locks, loopback ports."""
