"""BigQuery's rules for schema changes by a load or a patch. Pure: fields in, the first objection out.

https://cloud.google.com/bigquery/docs/managing-table-schemas
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from kbq_assets_tests.google.avro_schema import Field

_LEGACY = {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN", "STRUCT": "RECORD"}


def load_objection(table: Iterable[Field], files: Iterable[Field]) -> str:
    """Why files of these fields cannot be appended without schemaUpdateOptions, "" when they can."""
    return _objection(list(table), list(files), "", patch=False)


def patch_objection(table: Iterable[Field], wanted: Iterable[Field]) -> str:
    """Why a table cannot be given these fields, "" when it can."""
    return _objection(list(table), list(wanted), "", patch=True)


def size_objection(fields: Iterable[Field]) -> str:
    """Why a table cannot have so many fields or levels, "" when it can: https://cloud.google.com/bigquery/quotas"""
    fields = list(fields)
    if (leaves := _leaves(fields)) > 10_000:
        return f"Too many total leaf fields: {leaves}, max allowed field count: 10000"
    return _depth_objection(fields, "", 1)


def _leaves(fields: Iterable[Field]) -> int:
    """Fields that are not records."""
    return sum(_leaves(inner) if (inner := field.get("fields")) else 1 for field in fields)


def _depth_objection(fields: Iterable[Field], prefix: str, level: int) -> str:
    for field in fields:
        name, inner = f"{prefix}{field['name']}", field.get("fields") or []
        if inner and level > 15:
            return f"Schema nested too deeply for field {name}, maximum allowed depth is 15."
        if objection := _depth_objection(inner, f"{name}.", level + 1):
            return objection
    return ""


def tag_objection(fields: Iterable[Field], prefix: str = "") -> str:
    """Why fields cannot have their policy tags, "" when they can. One per column, and records have none:
    https://cloud.google.com/bigquery/docs/column-level-security
    """
    for field in fields:
        name, tags = f"{prefix}{field['name']}", (field.get("policyTags") or {}).get("names") or []
        if len(tags) > 1 or (tags and kind_of(field) == "RECORD"):
            return f"Field {name} cannot have these policy tags"
        if tags and not re.fullmatch(
            r"projects/[^/]+/locations/[^/]+/taxonomies/\d+/policyTags/\d+", tags[0]
        ):
            return f"Field {name}: Invalid policy tag {tags[0]}"
        if objection := tag_objection(field.get("fields") or [], f"{name}."):
            return objection
    return ""


def inherit(table: dict[str, Any], defaults: Mapping[str, str], now_ms: int) -> None:
    """Give a new table its dataset's expirations. A null says nothing. A partitioned table uses only one of both:
    https://cloud.google.com/bigquery/docs/reference/rest/v2/datasets
    """
    partitions = table.get("timePartitioning")
    by_partition = defaults.get("defaultPartitionExpirationMs")
    if partitions and by_partition:
        if not partitions.get("expirationMs"):
            table["timePartitioning"] = {**partitions, "expirationMs": by_partition}
    elif (whole := defaults.get("defaultTableExpirationMs")) and not table.get("expirationTime"):
        table["expirationTime"] = str(now_ms + int(whole))


def expiration_objection(table: Mapping[str, Any]) -> str:
    """Why a table cannot have these expirations, "" when it can: only null removes one."""
    given = (table.get("timePartitioning") or {}).get("expirationMs")
    return "Partition expiration must be positive" if given is not None and int(given) <= 0 else ""


def is_expired(day: date | None, expiration_ms: str | None, today: date) -> bool:
    """Whether a row of this day is dropped as it is loaded. The job counts it all the same."""
    if day is None or not expiration_ms:
        return False
    return today - day > timedelta(milliseconds=int(expiration_ms))


def has_tags(fields: Iterable[Field]) -> bool:
    """Whether any field has a policy tag."""
    return any((f.get("policyTags") or {}).get("names") or has_tags(f.get("fields") or []) for f in fields)


def kind_of(field: Field) -> str:
    """A field's type in the API's words, which has two for some."""
    kind = str(field["type"]).upper()
    return _LEGACY.get(kind, kind)


def mode_of(field: Field) -> str:
    """NULLABLE when a field does not say."""
    return str(field.get("mode") or "NULLABLE").upper()


def _objection(table: Sequence[Field], wanted: Sequence[Field], prefix: str, patch: bool) -> str:
    given = {str(field["name"]).casefold(): field for field in wanted}
    for field in table:
        name = prefix + str(field["name"])
        new = given.pop(str(field["name"]).casefold(), None)
        said = _missing(field, name, patch) if new is None else _changed(field, new, name, patch)
        if said:
            return said
    for field in given.values():
        name = prefix + str(field["name"])
        if not patch:
            return f"Cannot add fields (field: {name})"
        if mode_of(field) == "REQUIRED":
            return f"Cannot add required fields to an existing schema (field: {name})"
    return ""


def _missing(field: Field, name: str, patch: bool) -> str:
    if patch or mode_of(field) == "REQUIRED":
        return f"Field {name} is missing in new schema"
    return ""


def _changed(field: Field, new: Field, name: str, patch: bool) -> str:
    if kind_of(field) != kind_of(new):
        return f"Field {name} has changed type from {kind_of(field)} to {kind_of(new)}"
    modes = (mode_of(field), mode_of(new))
    relaxes = modes == ("REQUIRED", "NULLABLE") and patch
    # What is never null may go where nulls are allowed; a table's own field cannot become REQUIRED again.
    fits = modes == ("NULLABLE", "REQUIRED") and not patch
    if modes[0] != modes[1] and not relaxes and not fits:
        return f"Field {name} has changed mode from {modes[0]} to {modes[1]}"
    return _objection(field.get("fields") or [], new.get("fields") or [], f"{name}.", patch)
