"""Personal data in a worker: decided fields are replaced before staging."""
