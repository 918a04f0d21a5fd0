"""The registry over HTTP: against a server on a real socket, and (marked `kafka`) against the local stack's
registry."""

from __future__ import annotations

import base64
import contextlib
import datetime
import ipaddress
import json
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kbq_assets.adapters import http
from kbq_assets.adapters.registry import ConfluentSchemaRegistry, confluent
from kbq_assets.core.config.parts import RegistrySettings
from kbq_assets.core.errors import ConfigurationError, KbqError, NotFound, Unavailable, UnstageableSchema
from kbq_assets.local.stack import LocalStack
from kbq_assets.ports.registry import SchemaRegistry
from kbq_assets_tests.adapters.kafka.fetch.certificates import strict
from kbq_assets_tests.contracts.registry import (
    GUID,
    SCHEMA,
    SUBJECT,
    SchemaRegistryContract,
    StoppableRegistryContract,
)
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.fakes.registry_server import Answer, RegistryServer, registry_server
from kbq_assets_tests.fixtures.variables import Variables

SECRET = "s3cr3t/%&"
QUOTED_SECRET = "s3cr3t%2F%25%26"


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    subject = "/subjects/a%2Fb%20c-value/versions"
    version = Answer.of({"subject": SUBJECT, "id": 7, "schema": SCHEMA})
    answers = {
        "/schemas/ids/7": Answer.of({"schema": SCHEMA}),
        f"/schemas/guids/{GUID}": Answer.of({"schema": SCHEMA, "guid": GUID}),
        f"{subject}?deleted=true": Answer.of([1, 3]),
        **{f"{subject}/{number}?deleted=true": version for number in (1, 3)},
    }
    with registry_server(answers) as served:
        yield served


class TestFakeRegistry(StoppableRegistryContract):
    @pytest.fixture
    def registry(self) -> SchemaRegistry:
        registry = FakeRegistry({7: SCHEMA})
        registry.guids, registry.subjects = {GUID: 7}, {SUBJECT: {1: 7, 3: 7}}
        return registry

    @pytest.fixture
    def take_down(self, registry: FakeRegistry) -> Callable[[], None]:
        return lambda: setattr(registry, "down", True)


def at(url: str, **settings: Any) -> ConfluentSchemaRegistry:
    return ConfluentSchemaRegistry(RegistrySettings(url, **settings))


class TestConfluentSchemaRegistry(StoppableRegistryContract):
    @pytest.fixture
    def registry(self, server: RegistryServer) -> SchemaRegistry:
        return at(server.url)

    @pytest.fixture
    def take_down(self, server: RegistryServer) -> Callable[[], None]:
        return lambda: setattr(server, "override", Answer.error(500, 50001))


def test_a_guid_and_a_version_are_asked_for_once_and_the_list_of_versions_each_time(
    server: RegistryServer,
) -> None:
    registry = at(server.url)
    for _ in range(2):
        registry.by_guid(GUID)
        registry.versions(SUBJECT)
    assert len(server.paths) == 1 + 2 + 2


def test_a_reference_to_a_subject_that_no_address_can_name_is_an_error_of_ours(
    server: RegistryServer,
) -> None:
    reference = {"name": "a.proto", "subject": "\ud800", "version": 1}
    answer = {"schemaType": "PROTOBUF", "schema": "", "references": [reference]}
    server.answers = {"/schemas/ids/7": Answer.of(answer)}
    with pytest.raises(KbqError):
        at(server.url).schema(7)


@pytest.mark.parametrize("answer", [Answer.of({}), Answer.of(["1"]), Answer.of([1]), Answer.error(404, 404)])
def test_versions_that_make_no_sense_are_unavailable_or_none(server: RegistryServer, answer: Answer) -> None:
    server.answers = {"/subjects/x/versions?deleted=true": answer}
    with contextlib.suppress(Unavailable):
        assert at(server.url).versions("x") == {}


# Ids


def test_an_id_is_asked_for_once(server: RegistryServer) -> None:
    registry = at(server.url + "/")
    for _ in range(3):
        assert registry.schema(7).schema == SCHEMA
    assert server.paths == ["/schemas/ids/7"]


@pytest.mark.parametrize("schema_id", [-5, 2**31, 2**32 - 1])
def test_an_impossible_id_is_not_asked_for(server: RegistryServer, schema_id: int) -> None:
    with pytest.raises(NotFound):
        at(server.url).schema(schema_id)
    assert server.paths == []


def test_neither_failure_is_remembered(server: RegistryServer) -> None:
    registry = at(server.url)
    with pytest.raises(NotFound):
        registry.schema(8)
    server.override = Answer.error(503, 50003)
    with pytest.raises(Unavailable):
        registry.schema(8)
    server.override = None
    server.answers["/schemas/ids/8"] = Answer.of({"schema": SCHEMA})
    assert registry.schema(8).schema_id == 8


@pytest.mark.parametrize("kind", ["JSON", "PROTOBUF"])
def test_a_schema_that_is_not_avro_says_so(server: RegistryServer, kind: str) -> None:
    reference = {"name": "other", "subject": "other", "version": 1}
    body = {"schema": "syntax = …", "schemaType": kind, "references": [reference]}
    server.answers["/schemas/ids/8"] = Answer.of(body)
    server.answers["/subjects/other/versions/1?deleted=true"] = Answer.of({"schema": "the other"})
    found = at(server.url).schema(8)
    assert found.references == (("other", "the other"),)
    assert (found.schema, found.schema_type) == ("syntax = …", kind)


# Answers that are none


@pytest.mark.parametrize(
    "answer",
    [
        Answer.error(404, 40401),
        Answer(404, b"<html>not here</html>"),
        Answer(404),
        Answer.error(429, 42901),
        Answer.error(500, 50001),
        Answer(502, b"<html>bad gateway</html>"),
        Answer.error(503, 50003),
        Answer(204),
        Answer(200, b"<html>a login page</html>"),
        Answer(200, b"[" * 100_000),
        Answer.of([SCHEMA]),
        Answer.of({"schema": None}),
        Answer.of({"schema": SCHEMA, "references": [{"name": "x"}]}),
        Answer(200, b'{"schema"', length=100),
        Answer(200, json.dumps({"schema": SCHEMA}).encode(), delay_seconds=300),
        Answer(200, json.dumps({"schema": SCHEMA, "more": "x" * 3000}).encode(), drip_seconds=0.1),
        Answer(200, json.dumps({"schema": SCHEMA}).encode(), drip_seconds=0.1, drips_head=True),
        Answer.of({"schema": SCHEMA, "references": 7}),
        Answer.of({"schema": SCHEMA, "references": [7]}),
        Answer.of({"schema": SCHEMA, "references": [{"subject": "x", "version": float("inf")}]}),
        Answer(302, headers=(("Location", "http://127.0.0.1:1/schemas/ids/7"),)),
        Answer(302, headers=(("Location", "/schemas/ids/7"),)),
    ],
    ids=lambda answer: f"{answer.status}-{answer.body[:12].decode()}",
)
def test_an_answer_that_is_none_is_transient_and_soon_over(server: RegistryServer, answer: Answer) -> None:
    server.override = answer
    started = time.monotonic()
    with pytest.raises(Unavailable, match="next: "):
        at(server.url, timeout_seconds=0.5).schema(7)
    assert time.monotonic() - started < 60, "longer than its limit: the answers take five minutes"


def test_nobody_there_is_transient() -> None:
    with pytest.raises(Unavailable, match="Connection refused"):
        at("http://127.0.0.1:1").schema(7)
    with pytest.raises(Unavailable):
        at("http://no-such-host.invalid").schema(7)


def test_an_endless_answer_is_cut_off(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BYTES", 100_000)
    server.override = Answer.of({"schema": "x" * 200_000})
    with pytest.raises(UnstageableSchema, match="is larger than"):
        at(server.url).schema(7)


@pytest.mark.parametrize(
    ("limit", "match"), [({"_MAX_REFERENCES": 20}, "20 references"), ({"_MAX_BYTES": 2_000_000}, "1 MB")]
)
def test_references_without_end_are_cut_off(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int], match: str
) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(confluent, name, value)
    for number in range(100):
        several = [{"name": f"{number + n}", "subject": f"s{number + n}\udc00", "version": 1} for n in (1, 2)]
        answer = Answer.of({"schema": "x" * 100_000, "references": several})
        server.answers[f"/subjects/s{number}%3F/versions/1?deleted=true"] = answer
    first = {"name": "n", "subject": "s0\udc00", "version": 1}
    server.answers["/schemas/ids/7"] = Answer.of({"schema": SCHEMA, "references": [first]})
    with pytest.raises(UnstageableSchema, match=match):
        at(server.url).schema(7)


def test_versions_that_come_too_slowly_are_given_up(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each response comes in time, but ten thousand of them would take a day."""
    monkeypatch.setattr(confluent, "_MAX_SECONDS", 0.0)
    server.answers["/subjects/s/versions?deleted=true"] = Answer.of([1, 2, 3])
    for version in (1, 2, 3):
        server.answers[f"/subjects/s/versions/{version}?deleted=true"] = Answer.of(
            {"id": 7, "schema": SCHEMA}
        )
    with pytest.raises(Unavailable, match="1 version of s in 0 s"):
        at(server.url).versions("s")


@pytest.mark.parametrize("location", ["http://localhost:1/x", "https://other.example/x", "ftp://127.0.0.1/x"])
def test_a_redirection_to_another_host_is_refused_by_name(server: RegistryServer, location: str) -> None:
    server.override = Answer(307, headers=(("Location", location),))
    with pytest.raises(Unavailable, match=r"(?s)HTTP 307.*same host"):
        at(server.url).schema(7)
    assert len(server.paths) == 1


@pytest.mark.parametrize(
    "url", ["", "registry:8081", "ftp://u:s3cr3t@host", "http://", "http://host:port", "http://[1"]
)
def test_an_address_that_is_none_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="KBQ_REGISTRY_URL") as raised:
        at(url)
    assert "s3cr3t" not in str(raised.value)


# Several addresses


@pytest.mark.parametrize("first", [None, Answer.error(500, 50001), Answer(502), Answer.error(429, 42901)])
def test_the_next_address_is_tried_where_one_does_not_answer(
    server: RegistryServer, first: Answer | None
) -> None:
    with registry_server() as other:
        other.override = first
        url = "http://127.0.0.1:1" if first is None else other.url
        assert at(f"{url}, {server.url}").schema(7).schema == SCHEMA


def test_an_answer_of_the_first_address_is_taken(server: RegistryServer) -> None:
    with registry_server() as other:
        with pytest.raises(NotFound):
            at(f"{other.url},{server.url}").schema(7)
        other.override = Answer.error(500, 50001)
        server.override = Answer.error(503, 50003)
        with pytest.raises(Unavailable, match="503"):
            at(f"{other.url},{server.url}").schema(7)


# Credentials


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def test_credentials_are_sent(server: RegistryServer, tmp_path: Path, variables: Variables) -> None:
    variables["REGISTRY_PASSWORD"] = SECRET
    (tmp_path / "token").write_text(f"{SECRET}\n")
    in_url = server.url.replace("//", f"//ann:{QUOTED_SECRET}@")
    for registry in (
        at(server.url),
        at(server.url, username="ann", password=SECRET),
        at(server.url, username="ann", password="env:REGISTRY_PASSWORD"),
        at(in_url),
        at(in_url, username="bob", password="b"),
        at(server.url, token=SECRET),
        at(server.url, token=f"file:{tmp_path}/token"),
    ):
        registry.schema(7)
    ann, bob, bearer = basic("ann", SECRET), basic("bob", "b"), f"Bearer {SECRET}"
    assert server.authorizations == ["", ann, ann, ann, bob, bearer, bearer]


@pytest.mark.parametrize("reference", ["env:KBQ_TEST_NOT_SET", "file:/nowhere/at/all"])
@pytest.mark.parametrize("setting", ["username", "password", "token", "key_password"])
def test_a_secret_that_cannot_be_resolved_is_named(setting: str, reference: str) -> None:
    with pytest.raises(ConfigurationError, match=reference):
        at("http://127.0.0.1:1", **{setting: reference})


@pytest.mark.parametrize("token", [f"{SECRET}\nX-Other: 1", f"{SECRET}é"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        at("http://127.0.0.1:1", token=token)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_name_what_to_fix(server: RegistryServer, status: int) -> None:
    server.override = Answer.error(status, status * 100 + 1)
    with pytest.raises(ConfigurationError, match=r"(?s)next: .*KBQ_REGISTRY_PASSWORD.*KBQ_REGISTRY_TOKEN"):
        at(server.url, username="ann", password="wrong").schema(7)


@pytest.mark.parametrize(
    "answer", [Answer(401), Answer(404), Answer(500), Answer(200), Answer(200, b"{", length=9)]
)
def test_no_message_shows_a_secret(server: RegistryServer, answer: Answer) -> None:
    server.override = answer
    in_url = server.url.replace("//", f"//ann:{QUOTED_SECRET}@")
    for registry in (
        at(in_url),
        at(server.url, token=SECRET),
    ):
        with pytest.raises(KbqError) as raised:
            registry.schema(7)
        errors: list[BaseException | None] = [raised.value, raised.value.__cause__, raised.value.__context__]
        shown = " ".join(map(repr, errors)) + str(raised.value) + repr(vars(registry))
        assert SECRET not in shown
        assert QUOTED_SECRET not in shown


def test_credentials_do_not_follow_a_redirection(server: RegistryServer) -> None:
    with registry_server() as entry:
        entry.override = Answer(302, headers=(("Location", f"{server.url}/schemas/ids/7"),))
        at(entry.url, token=SECRET).schema(7)
    assert entry.authorizations == [f"Bearer {SECRET}"]
    assert server.authorizations == [""]


def test_a_registry_on_this_machine_is_reached_without_the_proxy(
    server: RegistryServer, variables: Variables
) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        variables[name] = "http://127.0.0.1:1"
    variables.pop("no_proxy", None)
    variables.pop("NO_PROXY", None)
    assert at(server.url).schema(7).schema == SCHEMA


# References


def record(name: str, **fields: Any) -> str:
    made = [{"name": field, "type": type_} for field, type_ in fields.items()]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": made})


def refer(*subjects: str) -> list[dict[str, Any]]:
    return [{"name": subject, "subject": subject, "version": 3} for subject in subjects]


# Order -> Person -> Address, Order -> Parcel -> Address
REFERRING = {
    "/schemas/ids/9": Answer.of(
        {
            "schema": record("Order", by="shop.Person", parcel="Parcel"),
            "references": refer("person", "parcel"),
        }
    ),
    "/subjects/person/versions/3?deleted=true": Answer.of(
        {"id": 4, "schema": record("Person", home="Address"), "references": refer("a/b c:é")}
    ),
    "/subjects/parcel/versions/3?deleted=true": Answer.of(
        {"id": 5, "schema": record("Parcel", to="shop.Address"), "references": refer("a/b c:é")}
    ),
    "/subjects/a%2Fb%20c%3A%C3%A9/versions/3?deleted=true": Answer.of(
        {"id": 6, "schema": record("Address", street="string")}
    ),
}


def test_references_are_written_out_once_each(server: RegistryServer) -> None:
    server.answers |= REFERRING
    found = at(server.url).schema(9)
    fastavro.parse_schema(json.loads(found.schema))
    person, parcel = (field["type"] for field in json.loads(found.schema)["fields"])
    assert person["fields"][0]["type"]["fields"] == [{"name": "street", "type": "string"}]
    assert parcel["fields"][0]["type"] == "shop.Address"
    assert sorted(server.paths) == sorted(REFERRING)


# Order -> Person -> Address of version 3, and Order -> Address of version 4: several schemas of one name
TWO_VERSIONS = {
    "/subjects/person/versions/3?deleted=true": Answer.of(
        {"schema": record("Person", home="Address"), "references": refer("address")}
    ),
    "/subjects/address/versions/3?deleted=true": Answer.of({"schema": record("Address", street="string")}),
    "/subjects/address/versions/4?deleted=true": Answer.of({"schema": record("Address", zip="string")}),
}
NEWER = {"name": "address", "subject": "address", "version": 4}


@pytest.mark.parametrize(
    ("references", "field"), [([*refer("person"), NEWER], "street"), ([NEWER, *refer("person")], "zip")]
)
@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF"])
def test_of_several_schemas_of_one_name_the_one_counts_that_confluents_client_finds_first(
    server: RegistryServer, kind: str, references: list[dict[str, Any]], field: str
) -> None:
    """Depth first, in the order of the references: its `AbstractSchemaProvider.resolveReferences`."""
    order = {
        "schema": record("Order", by="Person", to="Address"),
        "schemaType": kind,
        "references": references,
    }
    server.answers |= {**TWO_VERSIONS, "/schemas/ids/9": Answer.of(order)}
    found = at(server.url).schema(9)
    texts = [found.schema, *(text for name, text in found.references if name == "address")]
    assert [name for name in ("street", "zip") if f'"{name}"' in "".join(texts)] == [field]


def test_a_missing_reference_is_not_a_missing_schema(server: RegistryServer) -> None:
    server.answers |= REFERRING
    del server.answers["/subjects/person/versions/3?deleted=true"]
    with pytest.raises(Unavailable, match="version 3 of person"):
        at(server.url).schema(9)


def test_references_that_run_in_a_circle_end(server: RegistryServer) -> None:
    server.answers["/schemas/ids/9"] = Answer.of({"schema": record("A", b="B"), "references": refer("b")})
    server.answers["/subjects/b/versions/3?deleted=true"] = Answer.of(
        {"schema": record("B", a=["null", "A"]), "references": refer("b")}
    )
    fastavro.parse_schema(json.loads(at(server.url).schema(9).schema))


def test_a_schema_with_references_that_is_no_schema_is_left_to_its_reader(server: RegistryServer) -> None:
    server.answers["/schemas/ids/9"] = Answer.of({"schema": "{", "references": refer("person")})
    server.answers["/subjects/person/versions/3?deleted=true"] = Answer.of({"schema": "{"})
    assert at(server.url).schema(9).schema == "{"


# TLS


class Authority:
    """A certificate authority, and the files of what it signs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
        self.file = self._write("authority.pem", self._signed(self._name, self._key, is_authority=True))

    def issue(self, name: str, password: bytes | None = None) -> tuple[str, str]:
        """A certificate for 127.0.0.1 and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        encryption = (
            serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        )
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        certificate = self._signed(subject, key, is_authority=False)
        return self._write(f"{name}.pem", certificate), self._write(f"{name}.key", pem)

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        builder = strict(builder, key, self._key, is_authority=is_authority)
        signed = builder.add_extension(address, critical=False).sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, data: bytes) -> str:
        (self._folder / name).write_bytes(data)
        return str(self._folder / name)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def server_tls(authority: Authority, *, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    if mutual:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_a_certificate_is_trusted_if_its_authority_is(authority: Authority) -> None:
    with registry_server({"/schemas/ids/7": Answer.of({"schema": SCHEMA})}, server_tls(authority)) as server:
        assert at(server.url, ca_file=authority.file).schema(7).schema == SCHEMA
        with pytest.raises(ConfigurationError, match=r"(?s)not trusted.*next: .*KBQ_REGISTRY_CA_FILE"):
            at(server.url).schema(7)


@pytest.mark.parametrize("password", [None, b"s3cr3t"])
def test_a_client_certificate_is_shown(authority: Authority, password: bytes | None) -> None:
    certificate, key = authority.issue("client", password)
    tls = server_tls(authority, mutual=True)
    with registry_server({"/schemas/ids/7": Answer.of({"schema": SCHEMA})}, tls) as server:
        registry = at(
            server.url,
            ca_file=authority.file,
            certificate_file=certificate,
            key_file=key,
            key_password=(password or b"").decode(),
        )
        assert registry.schema(7).schema == SCHEMA
        with pytest.raises(Unavailable):
            at(server.url, ca_file=authority.file).schema(7)


def test_tls_files_that_cannot_be_used_are_refused(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    certificate, key = authority.issue("locked", b"s3cr3t")
    _, other_key = authority.issue("other")
    for files in (
        {"ca_file": str(tmp_path / "none.pem")},
        {"ca_file": str(tmp_path / "empty.pem")},
        {"certificate_file": str(tmp_path / "none.pem")},
        {"certificate_file": certificate, "key_file": other_key},
        {"certificate_file": certificate, "key_file": key},
        {"certificate_file": certificate, "key_file": key, "key_password": "wr0ng"},
    ):
        with pytest.raises(ConfigurationError, match="TLS files") as raised:
            at("https://127.0.0.1:1", **files)
        assert "wr0ng" not in str(raised.value)


# A real registry


def register(stack: LocalStack, subject: str, schema: str, references: list[dict[str, Any]]) -> int:
    request = urllib.request.Request(
        f"{stack.registry_url}/subjects/{subject}/versions",
        json.dumps({"schema": schema, "references": references}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.load(response)
    assert isinstance(answer["id"], int)
    return answer["id"]


@pytest.mark.kafka
class TestRealRegistry(SchemaRegistryContract):
    @pytest.fixture
    def known_id(self, local_stack: LocalStack) -> int:
        return register(local_stack, "test-registry.order", SCHEMA, [])

    @pytest.fixture
    def registry(self, local_stack: LocalStack) -> SchemaRegistry:
        return at(local_stack.registry_url, timeout_seconds=60)

    def test_references_are_written_out(self, local_stack: LocalStack) -> None:
        register(local_stack, "test-registry.address", record("Address", street="string"), [])
        reference = {"name": "shop.Address", "subject": "test-registry.address", "version": 1}
        person = record("Person", home="shop.Address", work="Address")
        schema_id = register(local_stack, "test-registry.person", person, [reference])
        found = at(local_stack.registry_url, timeout_seconds=60).schema(schema_id)
        fastavro.parse_schema(json.loads(found.schema))

    def test_a_wrong_base_address_is_no_unknown_schema(self, local_stack: LocalStack) -> None:
        host = local_stack.registry_url.removesuffix("/apis/ccompat/v7")
        with pytest.raises(Unavailable, match=r"(?s)next: .*base address"):
            at(host).schema(1)
