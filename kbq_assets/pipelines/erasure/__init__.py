"""Erases records from everything that KBQ stores (PROTOCOL, Erasure)."""
