"""Schemas of JSON topics in the catalog, `schemas/value.json`: the first columns, known fields, tags.

Workers get such a schema with the topic's settings, reduced to types and tags, so they need no registry.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kbq_assets.core.catalog import CatalogEntry, CatalogFiles, CatalogProblem
from kbq_assets.core.catalog.mistakes import entry_mistake
from kbq_assets.core.spelling import meant
from kbq_assets.core.topics.json.declared import declared, tagged, tags_any_name, undeclared
from kbq_assets.core.topics.json.inference import InferredField, InferredSchema
from kbq_assets.core.topics.personal import Decision, fields_of, undecided

#: Limited, because each task carries the settings.
_MOST_CHARACTERS: Final = 100_000
_SCHEMAS: Final = frozenset({"items", "then", "else"})
_MAPS: Final = frozenset({"properties", "dependentSchemas", "dependencies", "$defs", "definitions"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf"})
_PLAIN: Final = frozenset({"type", "$ref", "pii"})
_DECIDE: Final = "pii: {fields: {email: pseudonym, …}}, or remove archiver from consumers"


def with_declared(
    entry: CatalogEntry, files: CatalogFiles
) -> tuple[CatalogEntry, tuple[CatalogProblem, ...]]:
    """An entry with its schema, and the schema's mistakes."""
    if entry.encoding not in ("json", "json-schema"):
        return entry, ()
    path = _path(entry, files)
    if path is None:
        return entry, tuple(_unvalidated(entry))
    try:
        schema = json.loads(files.schemas[path])
    except (ValueError, RecursionError) as error:
        return entry, (CatalogProblem(path, getattr(error, "lineno", 1), "", f"not JSON: {error}"),)
    problems = tuple(_problems(entry, files, path, schema))
    if problems or entry.encoding != "json":
        return entry, problems
    settings = entry.settings.with_options(declared=_sent(entry, schema))
    return dataclasses.replace(entry, settings=settings), ()


def _sent(entry: CatalogEntry, schema: Any) -> str:
    """The schema that tasks get. It is whole only if they validate values with it."""
    return json.dumps(schema, separators=(",", ":")) if entry.settings.records.validate else compact(schema)


def _unvalidated(entry: CatalogEntry) -> Iterator[CatalogProblem]:
    if entry.settings.records.validate and entry.encoding == "json":
        message, hint = (
            "no schema to validate values with",
            "add schemas/value.json, or encoding: json-schema",
        )
        yield CatalogProblem(entry.place.path, 1, "records.validate", message, hint)


def _path(entry: CatalogEntry, files: CatalogFiles) -> str | None:
    folders = (f"{entry.place.folder}/{entry.place.env}", entry.place.folder)
    return next(
        (path for path in (f"{f}/schemas/value.json" for f in folders) if path in files.schemas), None
    )


def own_decisions(entry: CatalogEntry, files: CatalogFiles) -> list[Decision]:
    """Decisions in an entry's own file, about fields of its schema. Inherited decisions are left out, because they may
    be for other topics, other record types, or records older than the schema."""
    own = files.documents[entry.place.path].find("pii.fields")
    paths = own.fields if own is not None else {}
    return [decision for decision in entry.settings.privacy.decisions if decision.path in paths]


def _problems(entry: CatalogEntry, files: CatalogFiles, path: str, schema: Any) -> Iterator[CatalogProblem]:
    decisions = entry.settings.privacy.decisions
    missing = undecided(tagged(schema), decisions)
    if entry.archived and missing:
        message = f"no decision about fields with the tag HIGH: {', '.join(missing)}"
        yield CatalogProblem(path, 1, "", message, _DECIDE)
    if (
        entry.archived
        and tags_any_name(schema)
        and (not decisions or entry.settings.privacy.others == "keep")
    ):
        yield CatalogProblem(
            path, 1, "", "tags fields of any name, but they would be kept", "pii: {others: drop, …}"
        )
    known = [*_paths(_columns(schema).root.fields)]
    for field in undeclared(schema, fields_of(own_decisions(entry, files))):
        hint = meant(field, known) or "fix it; a defaults.yaml decides about fields of other schemas"
        yield entry_mistake(entry, files, "pii.fields", f"{path} does not declare {field!r}", hint, field)
    business = entry.settings.records.event_date
    if (
        business
        and business.candidates
        and len(undeclared(schema, business.candidates)) == len(business.candidates)
    ):
        wanted, hint = " or ".join(map(repr, business.candidates)), meant(business.candidates[0], known)
        yield entry_mistake(entry, files, "partition_time", f"{path} does not declare {wanted}", hint)
    if entry.encoding == "json" and not declared(schema).fields:
        yield CatalogProblem(path, 1, "", "declares no field", "an object with properties")
    if entry.encoding == "json" and len(_sent(entry, schema)) > _MOST_CHARACTERS:
        yield CatalogProblem(
            path,
            1,
            "",
            "is too large to send with every task",
            "declare fewer fields: undeclared ones go to _kbq_rest",
        )


def _paths(fields: Iterable[InferredField], place: str = "") -> Iterator[str]:
    for field in fields:
        path = f"{place}.{field.key}".lstrip(".")
        yield path
        yield from _paths(field.inferred.fields, path)


def compact(schema: Any) -> str:
    """A schema as text, reduced to types and tags."""
    pruned = _pruned(schema)
    # A reference may point into the pruned part.
    whole = pruned if _columns(pruned) == _columns(schema) else schema
    return json.dumps(whole, separators=(",", ":"))


def _columns(schema: Any) -> InferredSchema:
    return InferredSchema().grown_by(declared(schema))


def _pruned(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {key: schema[key] for key in schema.keys() & _PLAIN}
    made |= {key: _pruned(schema[key]) for key in schema.keys() & _SCHEMAS}
    for key in schema.keys() & _MAPS:
        inner = schema[key]
        made[key] = {k: _pruned(v) for k, v in inner.items()} if isinstance(inner, Mapping) else inner
    for key in schema.keys() & _LISTS:
        made[key] = [_pruned(each) for each in schema[key]] if isinstance(schema[key], list) else schema[key]
    return dict(sorted(made.items()))
