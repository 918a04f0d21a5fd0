"""What a topic is configured to do: options, destinations, business time, JSON shape, personal data, evolution."""
