"""The `SchemaRegistry` port over Confluent's HTTP API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from kbq_assets.adapters.http import Reply
from kbq_assets.adapters.registry.endpoints import Credentials, Endpoint, Tls, endpoints
from kbq_assets.adapters.secrets import resolve
from kbq_assets.core.avro.references import inline_references
from kbq_assets.core.config.parts import RegistrySettings
from kbq_assets.core.errors import ConfigurationError, KbqError, NotFound, Unavailable, UnstageableSchema
from kbq_assets.core.plurals import counted
from kbq_assets.ports.registry import RegisteredSchema

_SUBJECT_NOT_FOUND: Final = 40401
_SCHEMA_NOT_FOUND: Final = 40403
#: Limits of a schema together with its references, and of a subject's versions.
_MAX_REFERENCES: Final = 1000
_MAX_VERSIONS: Final = 10_000
_MAX_BYTES: Final = 8 << 20
_MAX_SECONDS: Final = 120.0
#: Ids are signed in Java; the field in a record could hold larger ones.
_LARGEST_ID: Final = 2**31 - 1


@dataclass(frozen=True)
class _Reference:
    """A reference to another schema: a version of a subject, and the name used for it."""

    name: str
    subject: str
    version: int

    @property
    def path(self) -> str:
        # Records may still use schemas of a deleted subject.
        return (
            f"subjects/{quote(self.subject, safe='', errors='replace')}/versions/{self.version}?deleted=true"
        )


class ConfluentSchemaRegistry:
    """Schemas by id, each fetched once per process. Threads may share it.

    The URL may be a comma-separated list of addresses: if one does not answer, the next one is tried. Raises
    ConfigurationError for settings that cannot work.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        credentials = Credentials(
            resolve("the registry's user name", settings.username),
            resolve("the registry's password", settings.password),
            resolve("the registry's token", settings.token),
        )
        key_password = resolve("the password of the registry's key", settings.key_password)
        tls = Tls(settings.ca_file, settings.certificate_file, settings.key_file, key_password)
        self.endpoints = endpoints(settings.url, credentials, tls, settings.timeout_seconds)
        self._schemas: dict[int, RegisteredSchema] = {}
        self._guids: dict[str, RegisteredSchema] = {}
        self._versions: dict[tuple[str, int], int] = {}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id with resolved references. Raises NotFound, Unavailable, ConfigurationError."""
        if schema_id not in self._schemas:
            # Two threads may both fetch it, which is harmless: an id never changes its schema.
            self._schemas[schema_id] = self._fetch(schema_id)
        return self._schemas[schema_id]

    def by_guid(self, guid: str) -> RegisteredSchema:
        """The schema of a GUID. Raises NotFound, Unavailable, ConfigurationError."""
        if guid not in self._guids:
            reply, address = self._get(f"schemas/guids/{quote(guid, safe='')}")
            if reply.status == 404:  # an older registry responds like a wrong address
                raise NotFound(
                    f"the schema registry at {address} has no schema with the GUID {guid}, or is older than Confluent "
                    "Platform 8 and does not support GUIDs",
                    next_step="check that KBQ_REGISTRY_URL is the registry the topic's producers use",
                )
            self._guids[guid] = self._registered(-1, _answer(reply, f"the schema {guid}", address), guid)
        return self._guids[guid]

    def versions(self, subject: str) -> Mapping[int, int]:
        """The ids of a subject's versions. Raises NotFound, Unavailable, ConfigurationError."""
        path = f"subjects/{quote(subject, safe='', errors='replace')}/versions"
        reply, address = self._get(f"{path}?deleted=true")
        if reply.status == 404 and _error_code(reply) == _SUBJECT_NOT_FOUND:
            raise NotFound(f"the schema registry has no subject {subject}", next_step="check value_schema")
        if reply.status != 200 or not isinstance(reply.json, list):
            raise refused(reply, address)
        if len(reply.json) > _MAX_VERSIONS:
            raise UnstageableSchema(f"{subject} has more than {_MAX_VERSIONS} versions")
        started = time.monotonic()
        found: dict[int, int] = {}
        for version in reply.json:
            if time.monotonic() - started > _MAX_SECONDS:
                raise _too_slow(f"{counted(len(found) + 1, 'version')} of {subject}")
            if type(version) is int:
                found[version] = self._id_of(subject, version, path)
        return found

    def _id_of(self, subject: str, version: int, path: str) -> int:
        if (subject, version) not in self._versions:
            reply, address = self._get(f"{path}/{version}?deleted=true")
            found = _answer(reply, f"version {version} of {subject}", address).get("id")
            if not isinstance(found, int):
                raise refused(reply, address)
            self._versions[subject, version] = found
        return self._versions[subject, version]

    def _fetch(self, schema_id: int) -> RegisteredSchema:
        if not 0 <= schema_id <= _LARGEST_ID:  # for these ids, a registry responds like a wrong address
            raise _unknown_id(schema_id)
        reply, address = self._get(f"schemas/ids/{schema_id}")
        if reply.status == 404 and _error_code(reply) == _SCHEMA_NOT_FOUND:
            raise _unknown_id(schema_id)
        return self._registered(schema_id, _answer(reply, f"schema {schema_id}", address))

    def _registered(self, schema_id: int, answer: Mapping[str, Any], guid: str = "") -> RegisteredSchema:
        kind = answer.get("schemaType") or "AVRO"
        if kind == "AVRO":
            return RegisteredSchema(schema_id, self._whole(answer), label=guid)
        referenced = tuple(sorted(self._referenced(answer).items()))
        return RegisteredSchema(schema_id, answer["schema"], kind, referenced, guid)

    def _whole(self, answer: Mapping[str, Any]) -> str:
        schema: str = answer["schema"]
        referenced = self._referenced(answer)
        if not referenced:
            return schema
        try:
            return json.dumps(inline_references(schema, list(referenced.values())))
        except UnstageableSchema:
            return schema  # staging its records reports the error

    def _referenced(self, answer: Mapping[str, Any]) -> dict[str, str]:
        """The schemas that a schema refers to, directly and indirectly, by name.

        Several versions may have one name. As for Confluent's clients, the first counts: depth first, in the order of
        the references. ``wanted`` is a stack, from which a later mention of a name removes an earlier one.
        """
        schemas: dict[str, str] = {}
        wanted = _stacked({}, answer)
        size, started = len(answer["schema"]), time.monotonic()
        while wanted:
            if len(schemas) + len(wanted) > _MAX_REFERENCES:
                raise UnstageableSchema(f"it has more than {_MAX_REFERENCES} references")
            if time.monotonic() - started > _MAX_SECONDS:
                raise _too_slow(counted(len(schemas) + 1, "reference"))
            name, reference = wanted.popitem()
            what = f"version {reference.version} of {reference.subject}, which a schema refers to,"
            reply, address = self._get(reference.path)
            found = _answer(reply, what, address)
            schemas[name] = found["schema"]
            size += len(found["schema"])
            if size > _MAX_BYTES:
                raise UnstageableSchema(f"with its references it has more than {_MAX_BYTES >> 20} MB")
            wanted = {each: where for each, where in _stacked(wanted, found).items() if each not in schemas}
        return schemas

    def _get(self, path: str) -> tuple[Reply, str]:
        return first_reply(self.endpoints, lambda endpoint: endpoint.get(path))


def first_reply(addresses: Iterable[Endpoint], ask: Callable[[Endpoint], Reply]) -> tuple[Reply, str]:
    """The first response from any address, and that address. Raises Unavailable, ConfigurationError."""
    error: KbqError | None = None
    for endpoint in addresses:
        try:
            reply = ask(endpoint)
            if not _is_overload(reply):
                return reply, endpoint.address
            error = refused(reply, endpoint.address)
        except Unavailable as unavailable:
            error = unavailable
    assert error is not None
    raise error


def _is_overload(reply: Reply) -> bool:
    return reply.status == 429 or reply.status >= 500


def _error_code(reply: Reply) -> Any:
    code = reply.json.get("error_code") if isinstance(reply.json, Mapping) else None
    return code if isinstance(code, int) else None


def _answer(reply: Reply, what: str, address: str) -> Mapping[str, Any]:
    """The JSON object in a successful response with a schema. Raises ConfigurationError or Unavailable for others."""
    if reply.status in (401, 403):
        raise ConfigurationError(
            f"the schema registry at {address} does not let this user read {what} (HTTP {reply.status})",
            next_step="check KBQ_REGISTRY_USERNAME and KBQ_REGISTRY_PASSWORD, or KBQ_REGISTRY_TOKEN, and the "
            "user's permission to read subjects",
        )
    if reply.status == 404:
        raise Unavailable(
            f"the schema registry at {address} neither finds {what} nor reports it as unknown (HTTP 404, "
            f"error code {_error_code(reply)})",
            next_step="check that KBQ_REGISTRY_URL is the base address of Confluent's API",
        )
    if reply.status != 200:
        raise refused(reply, address)
    if not isinstance(reply.json, Mapping) or not isinstance(reply.json.get("schema"), str):
        raise Unavailable(
            f"the server at {address} is not a schema registry: {what} has no schema",
            next_step="check that KBQ_REGISTRY_URL is the base address of Confluent's API",
        )
    return reply.json


def _stacked(wanted: dict[str, _Reference], answer: Mapping[str, Any]) -> dict[str, _Reference]:
    """The stack with the references of a schema on top, the first one uppermost."""
    for reference in reversed(_references_of(answer)):
        wanted.pop(reference.name, None)
        wanted[reference.name] = reference
    return wanted


def _references_of(answer: Mapping[str, Any]) -> list[_Reference]:
    references = answer.get("references") or ()
    try:
        return [
            # A lone surrogate is valid neither in an address nor in a log.
            _Reference(
                str(each.get("name") or each["subject"]),
                str(each["subject"]).encode(errors="replace").decode(),
                int(each["version"]),
            )
            for each in references
        ]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise Unavailable(
            f"the schema registry returned invalid references: {str(references)[:200]}",
            next_step="check that KBQ_REGISTRY_URL is the base address of Confluent's API",
        ) from error


def refused(reply: Reply, address: str) -> Unavailable:
    step = "check its log; the next run retries"
    if 300 <= reply.status < 400:
        step = "KBQ follows redirects only on the same host: set KBQ_REGISTRY_URL to the redirect's target"
    return Unavailable(
        f"the schema registry at {address} responded with HTTP {reply.status}, error code {_error_code(reply)}",
        next_step=step,
    )


def _too_slow(what: str) -> Unavailable:
    return Unavailable(
        f"the schema registry did not return {what} in {_MAX_SECONDS:.0f} s",
        next_step="check its log; the next run tries again",
    )


def _unknown_id(schema_id: int) -> NotFound:
    return NotFound(
        f"the schema registry has no schema {schema_id}",
        next_step="check that KBQ_REGISTRY_URL is the registry the topic's producers use",
    )
