"""The `SubjectRegistry` port over Confluent's HTTP API, for `kbq catalog`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

from kbq_assets.adapters.http import Reply
from kbq_assets.adapters.registry.confluent import ConfluentSchemaRegistry, first_reply, refused
from kbq_assets.core.errors import Refused
from kbq_assets.ports.registry import LatestSchema

T = TypeVar("T")
_NO_SUBJECT: Final = frozenset({40401, 40402})
_NO_REASON: Final = "the registry gives no reason"


class ConfluentSubjects:
    """Subjects of the registry behind ``registry``, with its credentials."""

    def __init__(self, registry: ConfluentSchemaRegistry) -> None:
        self._endpoints = registry.endpoints

    def names(self) -> frozenset[str]:
        return frozenset(name for name in _good(*self._get("subjects"), list) if isinstance(name, str))

    def latest(self, subject: str) -> LatestSchema:
        reply, address = self._get(f"subjects/{_quoted(subject)}/versions/latest")
        found = _good(reply, address, dict)
        kind, text = str(found.get("schemaType") or "AVRO"), str(found.get("schema", ""))
        return LatestSchema(kind, text, bool(found.get("references")))

    def incompatibilities(self, subject: str, schema: str, schema_type: str) -> Sequence[str]:
        path, body = f"compatibility/subjects/{_quoted(subject)}/versions", _body(schema, schema_type)
        reply, address = self._post(f"{path}?verbose=true", body)
        # Some registries check only the latest version. Apicurio checks all, regardless of the subject's level.
        is_unknown = reply.status in (404, 405) and _code(reply) not in _NO_SUBJECT
        if is_unknown or (self._complaints(reply, address) and not self._is_transitive(subject)):
            reply, address = self._post(f"{path}/latest?verbose=true", body)
        return self._complaints(reply, address)

    def _complaints(self, reply: Reply, address: str) -> Sequence[str]:
        if reply.status == 404 and _code(reply) in _NO_SUBJECT:
            return ()
        if reply.status in (409, 422):
            return (_message(reply),)
        answer = _good(reply, address, dict)
        if answer.get("is_compatible"):
            return ()
        messages = answer.get("messages")
        return tuple(map(str, messages)) if messages and isinstance(messages, list) else (_NO_REASON,)

    def _is_transitive(self, subject: str) -> bool:
        """Whether compatibility covers all versions, not only the latest. True if the registry does not say."""
        for path in (f"config/{_quoted(subject)}?defaultToGlobal=true", "config"):
            reply, _ = self._get(path)
            if reply.status == 200 and isinstance(reply.json, Mapping):
                return "TRANSITIVE" in str(reply.json.get("compatibilityLevel", "TRANSITIVE"))
        return True

    def is_registered(self, subject: str, schema: str, schema_type: str) -> bool:
        reply, address = self._post(f"subjects/{_quoted(subject)}", _body(schema, schema_type))
        if reply.status == 404 and _code(reply) not in _NO_SUBJECT:
            return self._is_latest(subject, schema, schema_type)
        if reply.status in (404, 422):
            return False  # 422: the schema is invalid; `register` reports it
        _good(reply, address, dict)
        return True

    def _is_latest(self, subject: str, schema: str, schema_type: str) -> bool:
        """Whether the latest version is the same JSON. Apicurio compares texts including spaces. Its normalization
        would ignore descriptions."""
        latest, document = self.latest(subject), _document(schema)
        return latest.schema_type == schema_type and document != "" and document == _document(latest.schema)

    def register(self, subject: str, schema: str, schema_type: str) -> int:
        path = f"subjects/{_quoted(subject)}/versions"
        reply, address = self._post(path, _body(schema, schema_type))
        if reply.status in (409, 422):
            raise Refused(
                f"the registry does not accept the schema of {subject}: {_message(reply)}",
                next_step="fix the schema, or the subject's compatibility",
            )
        found = _good(reply, address, dict).get("id")
        if not isinstance(found, int):
            raise refused(reply, address)
        return found

    def _get(self, path: str) -> tuple[Reply, str]:
        return first_reply(self._endpoints, lambda endpoint: endpoint.get(path))

    def _post(self, path: str, body: Mapping[str, str]) -> tuple[Reply, str]:
        return first_reply(self._endpoints, lambda endpoint: endpoint.post(path, body))


def _good(reply: Reply, address: str, kind: type[T]) -> T:
    """The JSON in a successful response. Raises Unavailable if it has another type."""
    if reply.status != 200 or not isinstance(reply.json, kind):
        raise refused(reply, address)
    return reply.json


def _quoted(subject: str) -> str:
    return quote(subject, safe="", errors="replace")


def _body(schema: str, schema_type: str) -> dict[str, str]:
    # AVRO is the default type, and some older registries support no other.
    return {"schema": schema} if schema_type == "AVRO" else {"schema": schema, "schemaType": schema_type}


def _document(schema: str) -> str:
    """A schema's JSON in canonical form; empty if it is not JSON."""
    try:
        return json.dumps(json.loads(schema), sort_keys=True)
    except (ValueError, RecursionError):
        return ""


def _code(reply: Reply) -> int:
    """Confluent's error code; 0 if there is none."""
    found = reply.json.get("error_code") if isinstance(reply.json, Mapping) else None
    return found if isinstance(found, int) else 0


def _message(reply: Reply) -> str:
    return str(reply.json.get("message", "")) if isinstance(reply.json, Mapping) else f"HTTP {reply.status}"
