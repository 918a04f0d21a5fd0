"""Checks for problems that would fail the next extraction of the chosen topics: keys, compilers, schemas, unreachable
brokers."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kbq_assets.core.avro.tree import load_schema
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import KbqError, NotFound, TransientError
from kbq_assets.core.plurals import counted
from kbq_assets.core.topics.source_list import SourceEntry, select_entries
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.doctor.check import Check, Outcome
from kbq_assets.worker.adapters import open_pseudonyms, open_seal_key

if TYPE_CHECKING:
    from kbq_assets.ports.registry import WriterSchemas

#: A broker that does not accept a connection within this time is unreachable.
_SECONDS = 3.0
_SHOWN = 5


def mistakes(entries: Iterable[SourceEntry]) -> Iterator[Check]:
    for entry in entries:
        if entry.mistake is not None:
            found = f"{entry.pattern} waits: {entry.mistake.message}"
            yield Check("topics", Outcome.FAIL, found, entry.mistake.next_step)


def hidden(entries: Sequence[SourceEntry]) -> Iterator[Check]:
    """Lines of topics that never apply, because an earlier line names or matches the topic."""
    named = [entry for entry in entries if not entry.is_pattern and entry.mistake is None]
    first = select_entries(entries, [entry.pattern for entry in named])
    for entry in named:
        if (other := first[entry.pattern]) is not entry:
            found = f"the line of {entry.pattern} never applies: the line of {other.pattern} comes first"
            yield Check("topics", Outcome.WARN, found, "move it up, or delete one of the two")


def chosen(settings: Settings, entries: Iterable[SourceEntry], on_broker: Iterable[str]) -> Check:
    """Whether there is a topic to extract."""
    entries, place = list(entries), settings.catalog.source_topics
    if not entries:
        fix = "add topics to the list, one per line"
        if place.is_dir():
            fix = "add archiver to the consumers of an entry: kbq catalog init writes first entries"
        return Check("topics", Outcome.FAIL, f"{place} chooses no topic", fix)
    known = set(on_broker)
    missing = sorted(e.pattern for e in entries if not any(e.matches(topic) for topic in known))
    if known and missing:
        found = f"not on the broker: {_some(missing)}"
        return Check("topics", Outcome.WARN, found, "create them, or correct their names; KBQ waits for them")
    return Check("topics", Outcome.OK, f"{counted(len(entries), 'entry', 'entries')} in {place}")


def keys(settings: Settings, entries: Iterable[SourceEntry]) -> Iterator[Check]:
    """Whether topics with personal data have the keys that their decisions need."""
    entries = list(entries)
    pseudonyms = [
        e.pattern for e in entries if any(d.action == "pseudonym" for d in e.settings.privacy.decisions)
    ]
    sealed = [
        e.pattern for e in entries if e.settings.privacy.decisions and e.settings.privacy.error_rows == "seal"
    ]
    new_key = "kbq pii new-key pseudonyms.json, then KBQ_PII_KEYS=file:$PWD/pseudonyms.json on every worker"
    keygen = "kbq pii keygen seal.key, then KBQ_PII_SEAL_KEY=file:$PWD/seal.key.pub on every worker"
    if pseudonyms:
        found = f"{_some(pseudonyms)}: fields become pseudonyms, but there is no key"
        yield _key("pseudonym keys", lambda: open_pseudonyms(settings), found, new_key)
    if sealed:
        found = f"{_some(sealed)}: error rows must be sealed, but there is no key"
        yield _key("seal key", lambda: open_seal_key(settings), found, keygen)


def _key(name: str, open_key: Callable[[], object], missing: str, fix: str) -> Check:
    try:
        found = open_key()
    except KbqError as error:
        return Check(name, Outcome.FAIL, error.message, error.next_step)
    return Check(name, Outcome.FAIL, missing, fix) if found is None else Check(name, Outcome.OK, "found")


def protoc(entries: Iterable[SourceEntry]) -> Iterator[Check]:
    """Whether schemas of Protobuf topics can be compiled on this machine."""
    topics = [entry.pattern for entry in entries if entry.settings.records.format == "protobuf"]
    if topics and importlib.util.find_spec("grpc_tools") is None:
        fix = "pip install 'kbq-assets[protobuf]', also on the workers if a Spark cluster runs the tasks"
        yield Check("protoc", Outcome.FAIL, f"not installed, but {_some(topics)} need it", fix)
    elif topics:
        yield Check("protoc", Outcome.OK, f"installed, for {counted(len(topics), 'entry', 'entries')}")


def schemas(topics: Mapping[str, TopicSettings], registry: WriterSchemas) -> Iterator[Check]:
    """Topics whose latest schema cannot be staged. Topics without a subject of the usual name are not checked."""
    read = 0
    for topic, settings in sorted(topics.items()):
        if settings.records.format in ("json", "json_columns") or settings.records.framing == "none":
            continue
        try:
            problem = _problem(topic, settings, registry)
        except NotFound:
            continue
        except TransientError as error:
            yield Check("schemas", Outcome.FAIL, f"{topic}: {error.message}", error.next_step)
            return
        except KbqError as error:
            yield Check("schemas", Outcome.FAIL, f"{topic}: {error.message}", error.next_step)
            continue
        read += 1
        if problem:
            fix = "correct the topic's options or its schema; docs/operations.md: unstageable_schema"
            yield Check("schemas", Outcome.FAIL, f"{topic}: {problem}", fix)
    yield Check("schemas", Outcome.OK, f"read the latest schemas of {counted(read, 'topic')}")


def _problem(topic: str, settings: TopicSettings, registry: WriterSchemas) -> str:
    """The reason why records of the latest schema would stop the topic; "" if they would not."""
    from kbq_assets.wire.files.encode import RejectedSchema
    from kbq_assets.worker.named_fields import NamedFields
    from kbq_assets.worker.routes import Routes

    fields = NamedFields(topic, settings, registry)
    versions = registry.versions(fields.subject)
    if not versions:
        return ""
    schema_id = versions[max(versions)]
    found = registry.schema(schema_id)
    if settings.records.format == "protobuf" and found.schema_type == "PROTOBUF":
        from kbq_assets.adapters.protobuf import avro_schema_of, compile_types

        if (first := compile_types(found.schema, dict(found.references)).at((0,))) is not None:
            avro_schema_of(first)
        return fields.problem()
    if settings.records.format == "debezium" and found.schema_type == "AVRO":
        from kbq_assets.wire.debezium.envelope import unwrapped
        from kbq_assets.wire.privacy.tags import check_decided

        check_decided(unwrapped(load_schema(found.schema)).schema, settings.privacy.decisions)
        return ""
    if settings.records.format == "json_schema":
        return "" if found.schema_type == "JSON" else f"its schema is {found.schema_type}, not JSON"
    if settings.destination.route == "record_name" and isinstance(load_schema(found.schema), list):
        return fields.problem()
    route = Routes(topic, settings, registry, fields=fields).resolve(schema_id)
    return route.message if isinstance(route, RejectedSchema) else ""


def brokers(addresses: Iterable[tuple[str, int]]) -> Iterator[Check]:
    """Brokers of the cluster that this machine cannot reach. Reading their partitions would fail."""
    addresses = sorted(set(addresses))
    with ThreadPoolExecutor(max_workers=max(1, min(32, len(addresses)))) as pool:
        problems = list(pool.map(_unreachable, addresses))
    for (host, port), problem in zip(addresses, problems, strict=True):
        if problem:
            found = f"the cluster advertises {host}:{port}, but this machine cannot reach it: {problem}"
            fix = "correct that broker's advertised.listeners, or name resolution and firewalls in between"
            yield Check("brokers", Outcome.FAIL, found, fix)
    if addresses and not any(problems):
        yield Check("brokers", Outcome.OK, f"{len(addresses)} reachable at the cluster's addresses")


def _unreachable(address: tuple[str, int]) -> str:
    try:
        socket.create_connection(address, timeout=_SECONDS).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no resolver accepts
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ""


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
