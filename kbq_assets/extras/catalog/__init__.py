"""Validate, show, apply and start the topic catalog."""
