"""A real Kafka broker and schema registry on this machine, and the Java that runs them."""

from kbq_assets.adapters.local_stack.java import JavaRuntime, find_java
from kbq_assets.adapters.local_stack.stack import LocalStack, ServiceState, ServiceStatus

__all__ = ["JavaRuntime", "LocalStack", "ServiceState", "ServiceStatus", "find_java"]
