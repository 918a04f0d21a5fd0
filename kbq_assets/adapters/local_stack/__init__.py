"""A real Kafka broker and schema registry on this machine."""

from kbq_assets.adapters.local_stack.stack import LocalStack, ServiceState, ServiceStatus

__all__ = ["LocalStack", "ServiceState", "ServiceStatus"]
