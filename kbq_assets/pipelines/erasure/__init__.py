"""Erases records from everything that KBQ keeps (PROTOCOL, Erasure)."""
