"""Subjects of a registry: the meaning of each response for a catalog, including responses that no registry should
send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbq_assets.adapters.registry import ConfluentSchemaRegistry, ConfluentSubjects
from kbq_assets.core.config.parts import RegistrySettings
from kbq_assets.core.errors import Refused, Unavailable
from kbq_assets.ports.registry import LatestSchema
from kbq_assets_tests.fakes.registry_server import Answer, RegistryServer, registry_server

SUBJECT = "a/b c-value"
PATH = "/subjects/a%2Fb%20c-value"
CHECK = "/compatibility/subjects/a%2Fb%20c-value/versions"
SCHEMA = '{"type": "record", "name": "R", "fields": []}'


@pytest.fixture(scope="module")
def running() -> Iterator[RegistryServer]:
    with registry_server() as served:
        yield served


@pytest.fixture
def server(running: RegistryServer) -> RegistryServer:
    running.answers.clear()
    running.override = None
    running.paths.clear()
    return running


@pytest.fixture
def subjects(server: RegistryServer) -> ConfluentSubjects:
    return ConfluentSubjects(ConfluentSchemaRegistry(RegistrySettings(server.url, timeout_seconds=60)))


CALLS: dict[str, Callable[[ConfluentSubjects], Any]] = {
    "names": lambda subjects: subjects.names(),
    "latest": lambda subjects: subjects.latest(SUBJECT),
    "incompatibilities": lambda subjects: subjects.incompatibilities(SUBJECT, SCHEMA, "AVRO"),
    "is_registered": lambda subjects: subjects.is_registered(SUBJECT, SCHEMA, "AVRO"),
    "register": lambda subjects: subjects.register(SUBJECT, SCHEMA, "AVRO"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b""),
        Answer(200, b"<html>"),
        Answer(200, b'"text"'),
        Answer(200, b"[" * 100_000),
        Answer(204, b""),
        Answer.error(401, 401),
        Answer.error(403, 403),
        Answer.error(500, 50001),
        Answer(503, b"busy"),
        Answer(302, b"", (("Location", "http://elsewhere.invalid/"),)),
    ],
    ids=lambda answer: f"{answer.status} {answer.body[:9]!r}",
)
def test_an_answer_that_is_none_is_unavailable_and_shows_no_message(
    server: RegistryServer,
    subjects: ConfluentSubjects,
    call: Callable[[ConfluentSubjects], Any],
    answer: Answer,
) -> None:
    server.override = answer
    with pytest.raises(Unavailable) as raised:
        call(subjects)
    assert f"HTTP {answer.status}" in raised.value.message
    assert raised.value.next_step
    assert "confidential" not in str(raised.value)


@pytest.mark.parametrize(
    ("found", "names"), [([], ""), (["a", "b", "a"], "ab"), (["a", 1, None, ["b"]], "a")], ids=str
)
def test_names_are_the_texts_of_a_list(
    server: RegistryServer, subjects: ConfluentSubjects, found: list[Any], names: str
) -> None:
    server.answers["/subjects"] = Answer.of(found)
    assert subjects.names() == set(names)


@pytest.mark.parametrize(
    ("found", "latest"),
    [
        ({"schema": SCHEMA}, LatestSchema("AVRO", SCHEMA, False)),
        ({"schema": SCHEMA, "schemaType": None, "references": []}, LatestSchema("AVRO", SCHEMA, False)),
        ({"schema": "x", "schemaType": "PROTOBUF", "references": [{}]}, LatestSchema("PROTOBUF", "x", True)),
        ({}, LatestSchema("AVRO", "", False)),
    ],
    ids=str,
)
def test_the_latest_schema_has_a_type_and_maybe_references(
    server: RegistryServer, subjects: ConfluentSubjects, found: dict[str, Any], latest: LatestSchema
) -> None:
    server.answers[f"{PATH}/versions/latest"] = Answer.of(found)
    assert subjects.latest(SUBJECT) == latest


class TestIncompatibilities:
    @pytest.mark.parametrize(
        ("answer", "messages"),
        [
            (Answer.of({"is_compatible": True}), []),
            (Answer.of({"is_compatible": True, "messages": ["ignored"]}), []),
            (Answer.of({"is_compatible": False, "messages": ["one", 2]}), ["one", "2"]),
            (Answer.of({"is_compatible": False}), ["the registry gives no reason"]),
            (Answer.of({"is_compatible": False, "messages": "text"}), ["the registry gives no reason"]),
            (Answer.of({}), ["the registry gives no reason"]),
            (Answer.error(422, 42201), ["a confidential message"]),
            (Answer(409, b"no"), ["HTTP 409"]),
            (Answer.error(404, 40401), []),
            (Answer.error(404, 40402), []),
        ],
        ids=lambda part: part.body.decode() if isinstance(part, Answer) else "",
    )
    def test_all_versions_are_asked_about(
        self, server: RegistryServer, subjects: ConfluentSubjects, answer: Answer, messages: list[str]
    ) -> None:
        server.answers |= {
            f"{CHECK}?verbose=true": answer,
            "/config/a%2Fb%20c-value?defaultToGlobal=true": Answer.of(
                {"compatibilityLevel": "FULL_TRANSITIVE"}
            ),
        }
        assert list(subjects.incompatibilities(SUBJECT, SCHEMA, "AVRO")) == messages

    @pytest.mark.parametrize(
        ("config", "asks_again"),
        [
            (Answer.of({"compatibilityLevel": "BACKWARD"}), True),
            (Answer.of({"compatibilityLevel": "NONE"}), True),
            (Answer.of({"compatibilityLevel": "BACKWARD_TRANSITIVE"}), False),
            (Answer.of({}), False),
            (Answer.of([]), False),
            (Answer.error(404, 404), False),
        ],
        ids=lambda part: part.body.decode() if isinstance(part, Answer) else "",
    )
    def test_the_latest_version_alone_counts_where_the_subject_says_so(
        self, server: RegistryServer, subjects: ConfluentSubjects, config: Answer, asks_again: bool
    ) -> None:
        server.answers |= {
            f"{CHECK}?verbose=true": Answer.of({"is_compatible": False, "messages": ["of an old version"]}),
            f"{CHECK}/latest?verbose=true": Answer.of({"is_compatible": True}),
            "/config/a%2Fb%20c-value?defaultToGlobal=true": config,
        }
        found = list(subjects.incompatibilities(SUBJECT, SCHEMA, "AVRO"))
        assert found == ([] if asks_again else ["of an old version"])


class TestRegistration:
    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (Answer.of({"id": 1}), True),
            (Answer.of({}), True),
            (Answer.error(404, 40401), False),
            (Answer.error(404, 40403), False),
            (Answer.error(422, 42201), False),
        ],
        ids=lambda part: part.body.decode() if isinstance(part, Answer) else "",
    )
    def test_a_schema_is_registered_or_not(
        self, server: RegistryServer, subjects: ConfluentSubjects, answer: Answer, expected: bool
    ) -> None:
        server.answers |= {PATH: answer, f"{PATH}/versions/latest": Answer.of({"schema": '"other"'})}
        assert subjects.is_registered(SUBJECT, SCHEMA, "AVRO") is expected

    @pytest.mark.parametrize(
        ("latest", "expected"),
        [
            ({"schema": SCHEMA.replace(" ", "")}, True),
            ({"schema": '{"name": "R", "fields": [], "type": "record"}'}, True),
            ({"schema": SCHEMA, "schemaType": "JSON"}, False),
            ({"schema": SCHEMA.replace("R", "S")}, False),
            ({"schema": "{"}, False),
            ({}, False),
        ],
        ids=str,
    )
    def test_spaces_and_the_order_of_keys_make_no_other_schema(
        self, server: RegistryServer, subjects: ConfluentSubjects, latest: dict[str, Any], expected: bool
    ) -> None:
        server.answers |= {PATH: Answer.error(404, 40403), f"{PATH}/versions/latest": Answer.of(latest)}
        assert subjects.is_registered(SUBJECT, SCHEMA, "AVRO") is expected

    def test_a_schema_gets_an_id(self, server: RegistryServer, subjects: ConfluentSubjects) -> None:
        server.answers[f"{PATH}/versions"] = Answer.of({"id": 7})
        assert subjects.register(SUBJECT, SCHEMA, "AVRO") == 7

    @pytest.mark.parametrize("status", [409, 422])
    def test_a_schema_that_is_refused_says_why(
        self, server: RegistryServer, subjects: ConfluentSubjects, status: int
    ) -> None:
        server.answers[f"{PATH}/versions"] = Answer.of({"message": "field x was removed"}, status)
        with pytest.raises(Refused, match="a/b c-value: field x was removed") as raised:
            subjects.register(SUBJECT, SCHEMA, "AVRO")
        assert "compatibility" in raised.value.next_step

    @pytest.mark.parametrize("found", [{}, {"id": None}, {"id": "7"}, {"id": 7.5}], ids=str)
    def test_an_answer_without_an_id_is_unavailable(
        self, server: RegistryServer, subjects: ConfluentSubjects, found: dict[str, Any]
    ) -> None:
        server.answers[f"{PATH}/versions"] = Answer.of(found)
        with pytest.raises(Unavailable):
            subjects.register(SUBJECT, SCHEMA, "AVRO")
