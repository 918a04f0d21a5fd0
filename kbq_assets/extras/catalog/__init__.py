"""Validates, shows, applies and starts the topic catalog."""
