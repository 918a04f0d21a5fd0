"""Implementations of the ports: one SDK per module or package."""
