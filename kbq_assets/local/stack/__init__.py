"""A real Kafka broker and schema registry on this machine."""

from kbq_assets.local.stack.stack import LocalStack, ServiceState, ServiceStatus, on_free_ports

__all__ = ["LocalStack", "ServiceState", "ServiceStatus", "on_free_ports"]
