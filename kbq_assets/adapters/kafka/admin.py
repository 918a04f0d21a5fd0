"""The `TopicAdmin` port over librdkafka's admin client."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from functools import cached_property
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kbq_assets.adapters.kafka.errors import unavailable
from kbq_assets.adapters.kafka.metadata import BrokerMetadata
from kbq_assets.adapters.kafka.options import admin_options, client_options, without_secrets
from kbq_assets.core.catalog.access import GROUP, TOPIC, Acl, Allow, LiveAccess
from kbq_assets.core.catalog.changes import AddPartitions, AlterConfig, Change, CreateTopic, LiveTopic
from kbq_assets.core.errors import Refused

#: The package has no types for these constructors.
_BINDING: Final[Any] = AclBinding
_FILTER: Final[Any] = AclBindingFilter
_RESOURCES: Final = {TOPIC: ResourceType.TOPIC, GROUP: ResourceType.GROUP}
_NAMES: Final = {found: name for name, found in _RESOURCES.items()}
_EVERYWHERE: Final = "*"
ANY_ACL: Final[Any] = _FILTER(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
#: An ACL that every authorizer refuses, because the cluster has another name. A broker without ACLs returns another
#: error, which says why. librdkafka's list of ACLs does not: it is empty for both reasons in `NO_ACLS`.
IMPOSSIBLE: Final[Any] = _BINDING(
    ResourceType.BROKER, "no-such-cluster", ResourcePatternType.LITERAL, "User:nobody", _EVERYWHERE,
    AclOperation.DESCRIBE, AclPermissionType.ALLOW,
)  # fmt: skip
#: Errors of brokers that have no ACLs or do not show them.
NO_ACLS: Final[Mapping[int, str]] = {
    KafkaError.SECURITY_DISABLED: "the broker has no authorizer: everybody may do everything, no ACL can be added",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the credentials may not list and add ACLs (cluster: DESCRIBE, ALTER)",
}
_SECONDS: Final = 30.0
#: The package has no types for these constructors.
_RESOURCE: Final[Any] = ConfigResource
_ENTRY: Final[Any] = ConfigEntry
#: Errors of a change that the broker will never accept as it is.
_REFUSALS: Final = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_REQUEST,
        KafkaError.SECURITY_DISABLED,
    }
)


class KafkaTopicAdmin:
    """The `TopicAdmin` port for one cluster."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, str] | None = None) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._options = dict(options or {})

    def topics(self) -> Mapping[str, LiveTopic]:
        try:
            found = self._connection.read(_SECONDS).topics
        except KafkaException as error:
            raise self._unavailable("no metadata", error) from error
        return self._described(sorted(name for name in found if not name.startswith("__")))

    def _described(self, names: Collection[str]) -> dict[str, LiveTopic]:
        if not names:
            return {}
        described = self._all(
            self._admin.describe_topics(TopicCollection(list(names)), request_timeout=_SECONDS)
        )
        configs = self._configs(names)
        return {
            name: LiveTopic(
                len(topic.partitions),
                max((len(p.replicas) for p in topic.partitions), default=0),
                *configs.get(name, ({}, {})),
            )
            for name, topic in described.items()
            if not topic.is_internal
        }

    def _configs(self, names: Iterable[str]) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
        """Each topic's own settings, and those that it inherits from the broker."""
        resources = [_RESOURCE(ResourceType.TOPIC, name) for name in names]
        answers = self._all(self._admin.describe_configs(resources, request_timeout=_SECONDS))
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {
            resource.name: (
                {key: str(e.value) for key, e in sorted(entries.items()) if e.source == own},
                {key: str(e.value) for key, e in sorted(entries.items()) if e.source != own},
            )
            for resource, entries in answers.items()
        }

    def apply(self, change: Change) -> None:
        if isinstance(change, CreateTopic):
            topic = NewTopic(
                change.topic,
                num_partitions=change.partitions,
                replication_factor=change.replication,
                config=dict(change.config),
            )
            futures: Mapping[Any, Future[Any]] = self._admin.create_topics(
                [topic], operation_timeout=_SECONDS
            )
        elif isinstance(change, AddPartitions):
            futures = self._admin.create_partitions([NewPartitions(change.topic, change.after)])
        elif isinstance(change, Allow):
            futures = self._admin.create_acls(list(map(binding, change.acls)), request_timeout=_SECONDS)
        else:
            futures = self._admin.incremental_alter_configs([_altered(change)])
        self._settle(change, futures)
        self._await(change)

    def _await(self, change: Change) -> None:
        """Wait until all brokers show a change. The controller knows it first."""
        deadline = time.monotonic() + _SECONDS
        while not self._is_seen(change):
            if time.monotonic() > deadline:
                raise unavailable(f"{change}: done, but not visible yet", self._bootstrap_servers)
            time.sleep(0.1)

    def _is_seen(self, change: Change) -> bool:
        if isinstance(change, Allow):
            return self.access().acls.issuperset(change.acls)
        return _shows(self._described([change.topic]).get(change.topic), change)

    def access(self) -> LiveAccess:
        try:
            found = self._admin.describe_acls(ANY_ACL, request_timeout=_SECONDS).result()
        except KafkaException as raised:
            return LiveAccess(problem=self._why_no_acls(raised))
        acls = frozenset(filter(None, map(acl_of, found)))
        return LiveAccess(acls, "" if found else self._why_empty())

    def _why_empty(self) -> str:
        """Why the list of ACLs is empty; "" if none exist."""
        [answer] = self._admin.create_acls([IMPOSSIBLE], request_timeout=_SECONDS).values()
        try:
            answer.result()
        except KafkaException as raised:
            return NO_ACLS.get(raised.args[0].code(), "")
        return ""

    def _why_no_acls(self, raised: KafkaException) -> str:
        if problem := NO_ACLS.get(raised.args[0].code()):
            return problem
        raise self._unavailable("no ACLs", raised) from raised

    def _settle(self, change: Change, futures: Mapping[Any, Future[Any]]) -> None:
        for future in futures.values():
            try:
                future.result()
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
                if error.code() == KafkaError.TOPIC_ALREADY_EXISTS and isinstance(change, CreateTopic):
                    continue  # someone else created it first; the next plan compares the result
                if error.code() in _REFUSALS:
                    raise Refused(
                        f"{change}: {error.str()}", next_step="correct the entry, or the permission"
                    ) from raised
                raise self._unavailable(str(change), raised) from raised

    def _all(self, futures: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
        """The results, without topics that disappeared meanwhile."""
        answers = {}
        for key, future in futures.items():
            try:
                answers[key] = future.result()
            except KafkaException as raised:
                if raised.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._unavailable("no description of topics", raised) from raised
        return answers

    def _unavailable(self, what: str, raised: KafkaException) -> Exception:
        error: KafkaError = raised.args[0]
        clean = without_secrets(error.str(), client_options(self._bootstrap_servers, self._options))
        return unavailable(f"{what}: {clean}", self._bootstrap_servers, error)

    @property
    def _admin(self) -> AdminClient:
        return self._connection.client

    @cached_property
    def _connection(self) -> BrokerMetadata:
        return BrokerMetadata(admin_options(client_options(self._bootstrap_servers, self._options)))


def _shows(found: LiveTopic | None, change: CreateTopic | AddPartitions | AlterConfig) -> bool:
    if found is None:
        return False
    if isinstance(change, AddPartitions):
        return found.partitions >= change.after
    return isinstance(change, CreateTopic) or change.after.items() <= found.config.items()


def _altered(change: AlterConfig) -> Any:
    entries = [
        _ENTRY(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in sorted(change.after.items())
    ]
    return _RESOURCE(ResourceType.TOPIC, change.topic, incremental_configs=entries)


def binding(acl: Acl) -> Any:
    """An ACL in librdkafka's form."""
    pattern = ResourcePatternType.PREFIXED if acl.prefixed else ResourcePatternType.LITERAL
    permission = AclPermissionType.ALLOW if acl.allowed else AclPermissionType.DENY
    return _BINDING(
        _RESOURCES[acl.resource], acl.name, pattern, acl.principal, _EVERYWHERE,
        AclOperation[acl.operation], permission,
    )  # fmt: skip


def acl_of(found: Any) -> Acl | None:
    """An ACL from the broker; None for other resources, and for ACLs limited to some hosts."""
    resource, allowed = _NAMES.get(found.restype), found.permission_type == AclPermissionType.ALLOW
    if resource is None or (allowed and found.host != _EVERYWHERE):
        return None
    prefixed = found.resource_pattern_type == ResourcePatternType.PREFIXED
    return Acl(found.principal, found.operation.name, resource, found.name, prefixed, allowed)
