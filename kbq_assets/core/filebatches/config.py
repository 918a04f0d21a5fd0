"""The configuration of a batch: the `_config/` folders from the source's root to its own directory.

All `load.json` files are merged, and the nearest value of a key wins. Of `external.json` and `*.sql`, only the nearest
one counts. `ORDERME` at any level orders the batches below it. KBQ refuses unknown keys, and names them.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.filebatches.destinations import FileDestination, compile_regex, destination_of
from kbq_assets.core.filebatches.discovery import CONFIG, ListedObject, SourceListing

LOAD_JSON: Final = "load.json"
EXTERNAL_JSON: Final = "external.json"
ORDERME: Final = "ORDERME"
_SQL: Final = "*.sql"
#: Keys of `load.json` that do not belong to BigQuery's configuration.
DESTINATION_KEYS: Final = frozenset({"destinationTable", "destinationRegex", "dataSourceName"})
#: https://cloud.google.com/bigquery/docs/reference/rest/v2/Job#JobConfigurationLoad
LOAD_KEYS: Final = DESTINATION_KEYS | {
    "allowJaggedRows", "allowQuotedNewlines", "autodetect", "clustering", "createDisposition", "decimalTargetTypes",
    "encoding", "fieldDelimiter", "hivePartitioningOptions", "ignoreUnknownValues", "jsonExtension", "labels",
    "maxBadRecords", "nullMarker", "parquetOptions", "preserveAsciiControlCharacters", "quote", "rangePartitioning",
    "schema", "schemaUpdateOptions", "skipLeadingRows", "sourceFormat", "timePartitioning", "useAvroLogicalTypes",
    "writeDisposition",
}  # fmt: skip
#: https://cloud.google.com/bigquery/docs/reference/rest/v2/tables#ExternalDataConfiguration; KBQ sets `sourceUris`.
EXTERNAL_KEYS: Final = frozenset({
    "autodetect", "avroOptions", "compression", "csvOptions", "decimalTargetTypes", "hivePartitioningOptions",
    "ignoreUnknownValues", "jsonExtension", "jsonOptions", "maxBadRecords", "parquetOptions", "schema", "sourceFormat",
    "sourceUris",
})  # fmt: skip
#: Expected types of values. The value of any other key is text.
_KINDS: Final[Mapping[str, tuple[str, type]]] = {
    **dict.fromkeys(
        ("avroOptions", "clustering", "csvOptions", "destinationTable", "hivePartitioningOptions", "jsonOptions",
         "labels", "parquetOptions", "rangePartitioning", "schema", "timePartitioning"),
        ("an object", dict),
    ),
    **dict.fromkeys(("decimalTargetTypes", "schemaUpdateOptions", "sourceUris"), ("a list", list)),
    **dict.fromkeys(("maxBadRecords", "skipLeadingRows"), ("a whole number", int)),
    **dict.fromkeys(
        ("allowJaggedRows", "allowQuotedNewlines", "autodetect", "ignoreUnknownValues",
         "preserveAsciiControlCharacters", "useAvroLogicalTypes"),
        ("true or false", bool),
    ),
}  # fmt: skip
#: BigQuery's JSON may have whole numbers as text.
_WHOLE: Final = re.compile(r"[0-9]{1,18}")
FORMATS: Final = ("AVRO", "CSV", "NEWLINE_DELIMITED_JSON", "ORC", "PARQUET")
_WRITES: Final = ("WRITE_APPEND", "WRITE_TRUNCATE", "WRITE_EMPTY")
_HELP: Final = "docs/file-batches.md#configuration"


@dataclass(frozen=True)
class FileBatchConfig:
    """How a batch is loaded. ``load`` has BigQuery's keys. If ``sql`` is set, the batch is applied by this statement
    over an external table, which ``external`` describes."""

    destination: FileDestination
    ordered: bool = False
    load: Mapping[str, Any] = field(default_factory=dict)
    sql: str = ""
    external: Mapping[str, Any] = field(default_factory=dict)
    data_source: str = ""


@dataclass(frozen=True)
class SourceDefaults:
    """Defaults for what `_config/` does not set."""

    regex: str
    order_per_table: bool = False


Read = Callable[[ListedObject], bytes]


def levels(batch: str) -> list[str]:
    """A directory and its parents, beginning with the source's root."""
    parts = batch.split("/") if batch else []
    return ["/".join(parts[:count]) for count in range(len(parts) + 1)]


def is_ordered(batch: str, listing: SourceListing, defaults: SourceDefaults) -> bool:
    """Whether batches of this directory are ordered by path. Does not read the contents of the configuration."""
    return defaults.order_per_table or any(
        ORDERME in listing.configs.get(level, {}) for level in levels(batch)
    )


def config_of(
    batch: str, success: str, listing: SourceListing, read: Read, defaults: SourceDefaults
) -> FileBatchConfig:
    """The configuration and destination of a batch. Raises ConfigurationError that names the object and the key."""
    found = [(level, listing.configs[level]) for level in levels(batch) if level in listing.configs]
    for level, objects in found:
        _refuse_others(level, objects)
    load = _merged([(each.path, read(each)) for each in _named(found, LOAD_JSON)])
    destination = _destination(batch, success, load, defaults)
    sql = _nearest_sql(found)
    external = _named(found, EXTERNAL_JSON)[-1:]
    return FileBatchConfig(
        destination,
        is_ordered(batch, listing, defaults),
        _checked(batch, load),
        "" if sql is None else _text(sql.path, read(sql)),
        _external(external[0].path, read(external[0])) if external else {"sourceFormat": "PARQUET"},
        str(load.get("dataSourceName", "")),
    )


def destination_by(
    batch: str, success: str, listing: SourceListing, read: Read, defaults: SourceDefaults
) -> FileDestination:
    """Only the destination of a batch. If its configuration cannot be read, the path decides, so that the batch keeps
    its place in the table's order. Raises ConfigurationError."""
    found = [(level, listing.configs[level]) for level in levels(batch) if level in listing.configs]
    try:
        load = _merged([(each.path, read(each)) for each in _named(found, LOAD_JSON)], is_strict=False)
        return _destination(batch, success, load, defaults)
    except ConfigurationError:
        return _destination(batch, success, {}, defaults)


def _destination(
    batch: str, success: str, load: Mapping[str, Any], defaults: SourceDefaults
) -> FileDestination:
    own, fixed = load.get("destinationRegex"), load.get("destinationTable")
    if not isinstance(fixed, Mapping | None) or set(fixed or ()) - {"projectId", "datasetId", "tableId"}:
        raise ConfigurationError(
            f"load.json of {batch}: destinationTable has other keys than projectId, datasetId and tableId",
            next_step=_HELP,
        )
    regex = compile_regex(own, f"destinationRegex of {batch}") if own else None
    regex = regex or compile_regex(defaults.regex, "KBQ_FILES_DESTINATION_REGEX")
    return destination_of(f"{batch}/{success}" if batch else success, regex, fixed)


_Found = Sequence[tuple[str, Mapping[str, ListedObject]]]


def _named(found: _Found, name: str) -> list[ListedObject]:
    return [objects[name] for _, objects in found if name in objects]


def _nearest_sql(found: _Found) -> ListedObject | None:
    for level, objects in reversed(found):
        names = sorted(fnmatch.filter(objects, _SQL))
        if len(names) > 1:
            raise ConfigurationError(
                f"{_folder(level)} has several statements: {', '.join(names)}",
                next_step="keep one *.sql in a folder",
            )
        if names:
            return objects[names[0]]
    return None


def _refuse_others(level: str, objects: Mapping[str, ListedObject]) -> None:
    if (other := objects.get(CONFIG)) is not None and other.folder == level:
        raise ConfigurationError(f"{other.path} is a file or a link", next_step="make it a folder")
    for name in sorted(fnmatch.filter(objects, "*.json")):
        if name not in (LOAD_JSON, EXTERNAL_JSON):
            where = " (the schema is a key of load.json)" if name == "schema.json" else ""
            raise ConfigurationError(
                f"{_folder(level)}{name} is not read by KBQ{where}", next_step="remove it, or use load.json"
            )


def _folder(level: str) -> str:
    return f"{level}/{CONFIG}/" if level else f"{CONFIG}/"


def _text(path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8", next_step="save it as UTF-8") from error


def _document(path: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(_text(path, data))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}", next_step="correct it") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path} is not a JSON object", next_step="correct it")
    for key in document.keys() & (LOAD_KEYS | EXTERNAL_KEYS):  # the caller refuses any other by its name
        _check_kind(path, key, document[key])
    for key in ("csvOptions", "destinationTable"):
        for below, value in document.get(key, {}).items():
            _check_kind(path, below, value)
    return document


def _check_kind(path: str, key: str, value: Any) -> None:
    name, kind = _KINDS.get(key, ("text", str))
    if kind is int:
        fits = type(value) in (int, str) and _WHOLE.fullmatch(str(value)) is not None
    else:
        fits = isinstance(value, kind)
    if not fits:
        raise ConfigurationError(f"{path}: {key} is not {name}", next_step="correct it")


def _external(path: str, data: bytes) -> dict[str, Any]:
    document = _document(path, data)
    if unknown := sorted(document.keys() - EXTERNAL_KEYS):
        raise ConfigurationError(
            f"{path}: KBQ does not honor the key {', '.join(unknown)}", next_step=f"remove it, or see {_HELP}"
        )
    document.setdefault("sourceFormat", "PARQUET")
    if document["sourceFormat"] not in FORMATS:
        raise ConfigurationError(
            f"{path}: sourceFormat is {document['sourceFormat']!r}, and not {', '.join(FORMATS)}",
            next_step=_HELP,
        )
    return {key: value for key, value in document.items() if key != "sourceUris"}


def _merged(documents: Sequence[tuple[str, bytes]], *, is_strict: bool = True) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for path, data in documents:
        document = _document(path, data)
        if is_strict and (unknown := sorted(document.keys() - LOAD_KEYS)):
            raise ConfigurationError(
                f"{path}: KBQ does not honor the key {', '.join(unknown)}",
                next_step=f"remove it, or see {_HELP}",
            )
        _update(merged, document)
    return merged


def _update(merged: dict[str, Any], nearer: Mapping[str, Any]) -> None:
    """Override keys by nearer ones. Lists are replaced as a whole, as in Google's tool."""
    for key, value in nearer.items():
        if isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = dict(below) if isinstance(below, Mapping) else {}
            _update(merged[key], value)
        else:
            merged[key] = value


def _checked(batch: str, load: Mapping[str, Any]) -> dict[str, Any]:
    """BigQuery's keys, with KBQ's defaults: CSV, appended."""
    job = {key: value for key, value in load.items() if key not in DESTINATION_KEYS}
    job.setdefault("sourceFormat", "CSV")
    job.setdefault("writeDisposition", "WRITE_APPEND")
    for key, known in (("sourceFormat", FORMATS), ("writeDisposition", _WRITES)):
        if job[key] not in known:
            raise ConfigurationError(
                f"load.json of {batch}: {key} is {job[key]!r}, and not {', '.join(known)}", next_step=_HELP
            )
    return job
