"""Topics and subjects as `kbq catalog` changes them: the fakes, a real broker and a real registry."""

from __future__ import annotations

import pytest

from kbq_assets.adapters.kafka.admin import KafkaTopicAdmin
from kbq_assets.adapters.local_stack import LocalStack
from kbq_assets.adapters.registry import ConfluentSchemaRegistry, ConfluentSubjects
from kbq_assets.core.catalog.access import Acl, Allow
from kbq_assets.core.errors import Refused, Unavailable
from kbq_assets.ports.registry import SubjectRegistry
from kbq_assets.ports.topics import TopicAdmin
from kbq_assets_tests.contracts.topic_admin import SubjectRegistryContract, TopicAdminContract
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
class TestConfluentSubjects(SubjectRegistryContract):
    @pytest.fixture
    def subjects(self, local_stack: LocalStack) -> SubjectRegistry:
        return ConfluentSubjects(ConfluentSchemaRegistry(local_stack.registry_url, timeout_seconds=60))

    @pytest.mark.parametrize(
        ("kind", "text"), [("AVRO", '{"type": "recrd"}'), ("JSON", "{"), ("PROTOBUF", "message {")]
    )
    def test_what_is_no_schema_is_refused_with_the_registry_s_words(
        self, subjects: SubjectRegistry, subject: str, kind: str, text: str
    ) -> None:
        assert not subjects.is_registered(subject, text, kind)
        with pytest.raises(Refused, match=subject):
            subjects.register(subject, text, kind)


def test_a_registry_that_is_away_is_unavailable() -> None:
    subjects = ConfluentSubjects(ConfluentSchemaRegistry("http://127.0.0.1:1", timeout_seconds=1))
    with pytest.raises(Unavailable):
        subjects.subjects()
    with pytest.raises(Unavailable):
        subjects.register("s", "{}", "AVRO")
