"""The contract of code that administrates topics and subjects. Subclass it and give the fixtures."""

from __future__ import annotations

import json
import uuid

import pytest

from kbq_assets.core.catalog.changes import AddPartitions, AlterConfig, CreateTopic, LiveTopic
from kbq_assets.core.errors import Refused
from kbq_assets.ports.registry import SubjectRegistry
from kbq_assets.ports.topics import TopicAdmin


def order(*names: str) -> str:
    """A schema with nullable fields."""
    fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


#: The field `a` with another type: its readers cannot read what `order("a")` wrote.
NUMBERS = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "a", "type": "int"}]})


def json_order(**types: str) -> str:
    """A JSON Schema that says all there may be."""
    properties = {name: {"type": kind} for name, kind in types.items()}
    return json.dumps({"type": "object", "properties": properties, "additionalProperties": False})


def proto_order(*fields: str) -> str:
    """A Protobuf schema of one message."""
    return f'syntax = "proto3";\nmessage Order {{\n  {" ".join(f"{field};" for field in fields)}\n}}\n'


#: By type: a schema, one that can follow it, and one that cannot.
OTHERS = {
    "JSON": (json_order(a="string"), json_order(a="string", b="string"), json_order(a="integer")),
    "PROTOBUF": (
        proto_order("string a = 1"),
        proto_order("string a = 1", "string b = 2"),
        proto_order("int32 a = 1"),
    ),
}


class TopicAdminContract:
    """Give ``admin``."""

    @pytest.fixture
    def admin(self) -> TopicAdmin:
        raise NotImplementedError

    @pytest.fixture
    def topic(self) -> str:
        return f"admin.{uuid.uuid4().hex[:8]}"

    def test_a_created_topic_is_as_it_was_asked_for(self, admin: TopicAdmin, topic: str) -> None:
        admin.apply(CreateTopic(topic, 3, 1, {"retention.ms": "60000"}))
        assert admin.topics()[topic] == LiveTopic(3, 1, {"retention.ms": "60000"})

    def test_a_setting_without_a_value_is_the_broker_s_choice(self, admin: TopicAdmin, topic: str) -> None:
        admin.apply(CreateTopic(topic, -1, -1, {}))
        found = admin.topics()[topic]
        assert found.partitions >= 1
        assert (found.config, found.setting("cleanup.policy")) == ({}, "delete")

    def test_creating_what_is_there_changes_nothing(self, admin: TopicAdmin, topic: str) -> None:
        admin.apply(CreateTopic(topic, 2, 1, {}))
        admin.apply(CreateTopic(topic, 5, 1, {"retention.ms": "1"}))
        assert admin.topics()[topic] == LiveTopic(2, 1, {})

    def test_partitions_and_settings_change_and_others_stay(self, admin: TopicAdmin, topic: str) -> None:
        admin.apply(CreateTopic(topic, 1, 1, {"retention.ms": "60000"}))
        admin.apply(AddPartitions(topic, 1, 4))
        admin.apply(AlterConfig(topic, {}, {"cleanup.policy": "compact"}))
        assert admin.topics()[topic] == LiveTopic(
            4, 1, {"cleanup.policy": "compact", "retention.ms": "60000"}
        )

    def test_what_the_broker_refuses_is_refused(self, admin: TopicAdmin, topic: str) -> None:
        admin.apply(CreateTopic(topic, 3, 1, {}))
        with pytest.raises(Refused, match=topic):
            admin.apply(AddPartitions(topic, 1, 2))
        with pytest.raises(Refused, match=topic):
            admin.apply(AlterConfig(topic, {}, {"No.Such.Setting": "1"}))
        assert admin.topics()[topic] == LiveTopic(3, 1, {})


class SubjectRegistryContract:
    """Give ``subjects``, which demands that new versions are compatible."""

    @pytest.fixture
    def subjects(self) -> SubjectRegistry:
        raise NotImplementedError

    @pytest.fixture
    def subject(self) -> str:
        return f"admin-{uuid.uuid4().hex[:8]}-value"

    def test_a_schema_is_registered_once(self, subjects: SubjectRegistry, subject: str) -> None:
        assert not subjects.is_registered(subject, order("a"), "AVRO")
        first = subjects.register(subject, order("a"), "AVRO")
        assert subjects.is_registered(subject, order("a"), "AVRO")
        assert subjects.register(subject, order("a"), "AVRO") == first
        assert subject in subjects.names()
        assert subjects.latest(subject).schema_type == "AVRO"

    def test_a_schema_in_other_spacing_is_registered(self, subjects: SubjectRegistry, subject: str) -> None:
        """As `kbq init` writes it, for people to read."""
        for names in ("a", "b"):
            subjects.register(subject, order(names), "AVRO")
        spaced = json.dumps(json.loads(order("b")), indent=2)
        assert subjects.is_registered(subject, spaced, "AVRO")
        assert not subjects.is_registered(subject, spaced.replace('"b"', '"c"'), "AVRO")

    @pytest.mark.parametrize("kind", ["JSON", "PROTOBUF"])
    def test_schemas_of_other_types_are_judged_and_registered_as_such(
        self, subjects: SubjectRegistry, subject: str, kind: str
    ) -> None:
        first, second, wrong = OTHERS[kind]
        assert list(subjects.incompatibilities(subject, first, kind)) == []
        schema_id = subjects.register(subject, first, kind)
        assert subjects.is_registered(subject, first, kind)
        found = subjects.latest(subject)
        assert (found.schema_type, found.has_references) == (kind, False)
        assert subjects.register(subject, found.schema, kind) == schema_id
        assert list(subjects.incompatibilities(subject, second, kind)) == []
        assert not subjects.is_registered(subject, second, kind)
        assert list(subjects.incompatibilities(subject, wrong, kind)) != []
        with pytest.raises(Refused, match=subject):
            subjects.register(subject, wrong, kind)

    def test_a_new_version_is_judged_before_and_when_it_is_registered(
        self, subjects: SubjectRegistry, subject: str
    ) -> None:
        assert list(subjects.incompatibilities(subject, order("a"), "AVRO")) == []
        subjects.register(subject, order("a"), "AVRO")
        assert list(subjects.incompatibilities(subject, order("a", "b"), "AVRO")) == []
        assert not subjects.is_registered(subject, order("a", "b"), "AVRO")
        assert list(subjects.incompatibilities(subject, NUMBERS, "AVRO")) != []
        with pytest.raises(Refused, match=subject):
            subjects.register(subject, NUMBERS, "AVRO")
