"""Topics and subjects as `kbq catalog` changes them: with the fakes, a real broker and a real registry."""

from __future__ import annotations

import json
import urllib.request
import uuid

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from kbq_assets.adapters.kafka.admin import KafkaTopicAdmin
from kbq_assets.adapters.kafka.groups import KafkaGroups
from kbq_assets.adapters.registry import ConfluentSchemaRegistry, ConfluentSubjects
from kbq_assets.core.catalog.access import Acl, Allow
from kbq_assets.core.catalog.changes import CreateTopic
from kbq_assets.core.config.parts import RegistrySettings
from kbq_assets.core.errors import Refused, Unavailable
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.local.stack import LocalStack
from kbq_assets.ports.registry import SubjectRegistry
from kbq_assets.ports.topics import TopicAdmin
from kbq_assets_tests.contracts.topic_admin import SubjectRegistryContract, TopicAdminContract, order
from kbq_assets_tests.fakes.registry_server import Answer, registry_server
from kbq_assets_tests.fakes.topic_admin import FakeSubjects, FakeTopicAdmin


class TestFakeTopicAdmin(TopicAdminContract):
    @pytest.fixture
    def admin(self) -> TopicAdmin:
        return FakeTopicAdmin()


class TestFakeSubjects(SubjectRegistryContract):
    @pytest.fixture
    def subjects(self) -> SubjectRegistry:
        return FakeSubjects()


@pytest.mark.kafka
class TestKafkaTopicAdmin(TopicAdminContract):
    @pytest.fixture
    def admin(self, local_stack: LocalStack) -> TopicAdmin:
        return KafkaTopicAdmin(local_stack.bootstrap_servers)

    def test_a_broker_without_an_authorizer_says_so(self, admin: TopicAdmin, topic: str) -> None:
        assert "no authorizer" in admin.access().problem
        with pytest.raises(Refused, match=topic):
            admin.apply(Allow(topic, (Acl("User:a", "READ", "topic", topic),)))


@pytest.mark.kafka
def test_positions_are_the_offsets_of_a_group_without_members(local_stack: LocalStack) -> None:
    topic, servers = f"advisory-{uuid.uuid4().hex}", local_stack.bootstrap_servers
    KafkaTopicAdmin(servers).apply(CreateTopic(topic, 2, 1, {}))
    positions = {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 0}
    groups = KafkaGroups(servers)
    groups.commit(topic, positions)
    groups.commit(topic, {TopicPartition(topic, 0): 5})  # a reset moves back
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic})
    found = consumer.committed([ClientPartition(topic, partition) for partition in (0, 1)], timeout=60)
    consumer.close()
    assert [each.offset for each in found] == [5, 0]
    with pytest.raises(Unavailable, match=topic):
        groups.commit(topic, {TopicPartition(f"{topic}-missing", 0): 1})


@pytest.mark.kafka
class TestConfluentSubjects(SubjectRegistryContract):
    @pytest.fixture
    def subjects(self, local_stack: LocalStack) -> SubjectRegistry:
        return ConfluentSubjects(
            ConfluentSchemaRegistry(RegistrySettings(local_stack.registry_url, timeout_seconds=60))
        )

    @pytest.mark.parametrize(
        ("kind", "text"), [("AVRO", '{"type": "recrd"}'), ("JSON", "{"), ("PROTOBUF", "message {")]
    )
    def test_what_is_no_schema_is_refused_with_the_registry_s_words(
        self, subjects: SubjectRegistry, subject: str, kind: str, text: str
    ) -> None:
        assert not subjects.is_registered(subject, text, kind)
        with pytest.raises(Refused, match=subject):
            subjects.register(subject, text, kind)

    def test_a_schema_with_another_description_is_not_registered(
        self, subjects: SubjectRegistry, subject: str
    ) -> None:
        described = order("a").replace('"name": "a"', '"name": "a", "doc": "its place"')
        subjects.register(subject, described, "AVRO")
        assert not subjects.is_registered(subject, described.replace("its place", "its time"), "AVRO")

    @pytest.mark.parametrize(
        ("mode", "is_refused"), [("", False), ("BACKWARD", False), ("BACKWARD_TRANSITIVE", True)]
    )
    def test_versions_before_the_last_count_where_the_subject_says_so(
        self, subjects: SubjectRegistry, subject: str, local_stack: LocalStack, mode: str, is_refused: bool
    ) -> None:
        for names in ("a", "b"):
            subjects.register(subject, order(names), "AVRO")
        if mode:
            _demand(local_stack.registry_url, subject, mode)
        of_numbers = order("a", "b").replace("string", "int", 1)
        assert bool(subjects.incompatibilities(subject, of_numbers, "AVRO")) == is_refused
        assert list(subjects.incompatibilities(subject, order("b", "c"), "AVRO")) == []
        if is_refused:
            with pytest.raises(Refused, match=subject):
                subjects.register(subject, of_numbers, "AVRO")
        else:
            subjects.register(subject, of_numbers, "AVRO")


def _demand(url: str, subject: str, mode: str) -> None:
    """Set how versions of a subject must be compatible."""
    body = json.dumps({"compatibility": mode}).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(f"{url}/config/{subject}", body, headers, method="PUT")
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 200


VERSIONS = "/compatibility/subjects/s/versions"


def test_a_registry_that_judges_by_the_latest_version_alone_is_asked_to() -> None:
    answers = {
        f"{VERSIONS}?verbose=true": Answer.error(404, 404),
        f"{VERSIONS}/latest?verbose=true": Answer.of({"is_compatible": False, "messages": ["no"]}),
    }
    with registry_server(answers) as server:
        subjects = ConfluentSubjects(ConfluentSchemaRegistry(RegistrySettings(server.url)))
        assert list(subjects.incompatibilities("s", "{}", "AVRO")) == ["no"]
        assert list(subjects.incompatibilities("unknown", "{}", "AVRO")) == []


@pytest.mark.parametrize(
    ("level", "expected"), [("BACKWARD", []), ("FULL_TRANSITIVE", ["no"]), (None, ["no"])]
)
def test_a_registry_that_always_judges_by_all_versions_is_believed_where_all_count(
    level: str | None, expected: list[str]
) -> None:
    answers = {
        f"{VERSIONS}?verbose=true": Answer.of({"is_compatible": False, "messages": ["no"]}),
        f"{VERSIONS}/latest?verbose=true": Answer.of({"is_compatible": True}),
    }
    if level:
        answers["/config"] = Answer.of({"compatibilityLevel": level})
    with registry_server(answers) as server:
        subjects = ConfluentSubjects(ConfluentSchemaRegistry(RegistrySettings(server.url)))
        assert list(subjects.incompatibilities("s", "{}", "AVRO")) == expected


def test_what_judges_nothing_is_no_registry() -> None:
    with registry_server() as server:
        server.override = Answer.error(404, 404)
        subjects = ConfluentSubjects(ConfluentSchemaRegistry(RegistrySettings(server.url)))
        with pytest.raises(Unavailable):
            subjects.incompatibilities("s", "{}", "AVRO")


def test_a_registry_that_is_away_is_unavailable() -> None:
    subjects = ConfluentSubjects(
        ConfluentSchemaRegistry(RegistrySettings("http://127.0.0.1:1", timeout_seconds=1))
    )
    with pytest.raises(Unavailable):
        subjects.names()
    with pytest.raises(Unavailable):
        subjects.register("s", "{}", "AVRO")
