"""The `SubjectRegistry` port over Confluent's HTTP API, for `kbq catalog`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from kbq_assets.adapters.http import Reply
from kbq_assets.adapters.registry.confluent import ConfluentSchemaRegistry, first_reply, refused
from kbq_assets.core.errors import Refused
from kbq_assets.ports.registry import LatestSchema

_NO_SUBJECT: Final = frozenset({40401, 40402})


class ConfluentSubjects:
    """Subjects of the registry behind ``registry``, with its credentials."""

    def __init__(self, registry: ConfluentSchemaRegistry) -> None:
        self._endpoints = registry.endpoints

    def subjects(self) -> Mapping[str, LatestSchema]:
        """Each subject's latest version. Raises Unavailable."""
        names = self._good(*self._get("subjects"))
        return {name: self._latest(name) for name in names}

    def _latest(self, subject: str) -> LatestSchema:
        reply, address = self._get(f"subjects/{_quoted(subject)}/versions/latest")
        found = self._good(reply, address)
        kind, text = str(found.get("schemaType") or "AVRO"), str(found.get("schema", ""))
        return LatestSchema(kind, text, bool(found.get("references")))

    def incompatibilities(self, subject: str, schema: str, schema_type: str) -> Sequence[str]:
        """Why a schema cannot become the subject's next version. Raises Unavailable."""
        path, body = f"compatibility/subjects/{_quoted(subject)}/versions", _body(schema, schema_type)
        reply, address = self._post(f"{path}?verbose=true", body)
        # Some registries check only the latest version; Apicurio checks all, whatever the subject's level is.
        is_unknown = reply.status in (404, 405) and _code(reply) not in _NO_SUBJECT
        if is_unknown or (self._complaints(reply, address) and not self._is_transitive(subject)):
            reply, address = self._post(f"{path}/latest?verbose=true", body)
        return self._complaints(reply, address)

    def _complaints(self, reply: Reply, address: str) -> Sequence[str]:
        if reply.status == 404 and _code(reply) in _NO_SUBJECT:
            return ()
        if reply.status in (409, 422):
            return (_message(reply),)
        answer = self._good(reply, address)
        if answer.get("is_compatible"):
            return ()
        return tuple(map(str, answer.get("messages") or ("the registry gives no reason",)))

    def _is_transitive(self, subject: str) -> bool:
        """Whether versions before the latest count. If the registry does not report it, they do."""
        for path in (f"config/{_quoted(subject)}?defaultToGlobal=true", "config"):
            reply, _ = self._get(path)
            if reply.status == 200 and isinstance(reply.json, Mapping):
                return "TRANSITIVE" in str(reply.json.get("compatibilityLevel", "TRANSITIVE"))
        return True

    def is_registered(self, subject: str, schema: str, schema_type: str) -> bool:
        """Whether one of the subject's versions is this schema. Raises Unavailable."""
        reply, address = self._post(f"subjects/{_quoted(subject)}", _body(schema, schema_type))
        if reply.status in (404, 422):
            return False  # 422: the schema is invalid; `register` reports it
        self._good(reply, address)
        return True

    def register(self, subject: str, schema: str, schema_type: str) -> int:
        """Register a schema and return its id. Raises Refused, Unavailable."""
        path = f"subjects/{_quoted(subject)}/versions"
        reply, address = self._post(path, _body(schema, schema_type))
        if reply.status in (409, 422):
            raise Refused(
                f"the registry does not accept the schema of {subject}: {_message(reply)}",
                next_step="fix the schema, or the subject's compatibility",
            )
        return int(self._good(reply, address)["id"])

    def _get(self, path: str) -> tuple[Reply, str]:
        return first_reply(self._endpoints, lambda endpoint: endpoint.get(path))

    def _post(self, path: str, body: Mapping[str, str]) -> tuple[Reply, str]:
        return first_reply(self._endpoints, lambda endpoint: endpoint.post(path, body))

    def _good(self, reply: Reply, address: str) -> Any:
        if reply.status != 200 or reply.json is None:
            raise refused(reply, address)
        return reply.json


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _body(schema: str, schema_type: str) -> dict[str, str]:
    # AVRO is the registries' default type; some older ones know no other.
    return {"schema": schema} if schema_type == "AVRO" else {"schema": schema, "schemaType": schema_type}


def _code(reply: Reply) -> Any:
    return reply.json.get("error_code") if isinstance(reply.json, Mapping) else None


def _message(reply: Reply) -> str:
    return str(reply.json.get("message", "")) if isinstance(reply.json, Mapping) else f"HTTP {reply.status}"
