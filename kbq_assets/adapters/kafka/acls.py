"""ACLs, converted between librdkafka's terms and the catalog's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from kbq_assets.core.catalog.access import GROUP, TOPIC, Acl

#: The package has no types for these constructors.
_BINDING: Final[Any] = AclBinding
_FILTER: Final[Any] = AclBindingFilter
_RESOURCES: Final = {TOPIC: ResourceType.TOPIC, GROUP: ResourceType.GROUP}
_NAMES: Final = {found: name for name, found in _RESOURCES.items()}
_EVERYWHERE: Final = "*"
ANY_ACL: Final[Any] = _FILTER(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
#: A rule that every authorizer refuses, since the cluster has another name. Any other answer of a broker is the reason
#: why there are no rules: librdkafka returns an empty list for both reasons below.
IMPOSSIBLE: Final[Any] = _BINDING(
    ResourceType.BROKER, "no-such-cluster", ResourcePatternType.LITERAL, "User:nobody", _EVERYWHERE,
    AclOperation.DESCRIBE, AclPermissionType.ALLOW,
)  # fmt: skip
#: Answers of brokers that have no ACLs, or do not show them.
NO_ACLS: Final[Mapping[int, str]] = {
    KafkaError.SECURITY_DISABLED: "the broker has no authorizer: everybody may do everything, no ACL can be added",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the credentials may not see and add ACLs (cluster: DESCRIBE, ALTER)",
}


def binding(acl: Acl) -> Any:
    """A rule in librdkafka's form."""
    pattern = ResourcePatternType.PREFIXED if acl.prefixed else ResourcePatternType.LITERAL
    permission = AclPermissionType.ALLOW if acl.allowed else AclPermissionType.DENY
    return _BINDING(
        _RESOURCES[acl.resource], acl.name, pattern, acl.principal, _EVERYWHERE,
        AclOperation[acl.operation], permission,
    )  # fmt: skip


def acl_of(found: Any) -> Acl | None:
    """A rule from the broker; None for other resources, and for rules limited to some hosts."""
    resource, allowed = _NAMES.get(found.restype), found.permission_type == AclPermissionType.ALLOW
    if resource is None or (allowed and found.host != _EVERYWHERE):
        return None
    prefixed = found.resource_pattern_type == ResourcePatternType.PREFIXED
    return Acl(found.principal, found.operation.name, resource, found.name, prefixed, allowed)
