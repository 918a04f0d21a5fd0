"""Confluent's schema registry, and others with its HTTP API (Apicurio, Karapace, Redpanda).

It uses KBQ's own HTTP client: Confluent's costs every Spark worker 27 MB and 0.15 s, repeats calls for longer than
the timeout, and needs the name of a Confluent cluster with a bearer token.
"""

from kbq_assets.adapters.registry.confluent import ConfluentSchemaRegistry
from kbq_assets.adapters.registry.subjects import ConfluentSubjects

__all__ = ["ConfluentSchemaRegistry", "ConfluentSubjects"]
