"""A topic's configuration: options, destinations, business time, inferred JSON schema, personal data, evolution."""
