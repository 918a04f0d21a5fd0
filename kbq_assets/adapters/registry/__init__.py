"""Confluent's schema registry, and others with the same HTTP API (Apicurio, Karapace, Redpanda).

It uses KBQ's own HTTP client. Confluent's client costs every Spark worker 27 MB and 0.15 s, retries calls beyond the
timeout, and requires the name of a Confluent cluster with a bearer token.
"""

from kbq_assets.adapters.registry.confluent import ConfluentSchemaRegistry
from kbq_assets.adapters.registry.subjects import ConfluentSubjects

__all__ = ["ConfluentSchemaRegistry", "ConfluentSubjects"]
