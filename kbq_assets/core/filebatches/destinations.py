"""Derives a batch's table from its path, as Google's `gcs_event_based_ingest` does."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import TableReference

#: The default expression of Google's tool.
DEFAULT_REGEX: Final = (
    r"^(?P<dataset>[\w\-\.]+)/(?P<table>[\w\-]+)/?(?:historical|incremental)?/?(?P<partition>\$[\d]+)?/?"
    r"(?:(?P<yyyy>[\d]{4})/?(?P<mm>[\d]{2})?/?(?P<dd>[\d]{2})?/?(?P<hh>[\d]{2})?/?)?(?P<batch>[\w\-]+)?/"
)
_DECORATOR: Final = re.compile(r"\$(\d{4}|\d{6}|\d{8}|\d{10})")
_HELP: Final = "docs/file-batches.md#paths"


@dataclass(frozen=True)
class FileDestination:
    """The table of a batch. ``project`` is set if it is not the warehouse's. ``decorator`` is a partition such as
    `$2020010203`, "" for the whole table; ``batch_id`` is for labels. ``prefix`` is the table's directory, which has
    `_backlog/`, `_bqlock` and `_BACKFILL`."""

    prefix: str
    table: TableReference
    decorator: str = ""
    project: str = ""
    batch_id: str = ""


@functools.lru_cache(maxsize=64)
def compile_regex(text: str, where: str) -> re.Pattern[str]:
    """Compile the expression of a destination. Raises ConfigurationError that names ``where`` it was set."""
    try:
        compiled = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigurationError(
            f"{where}: {text[:200]!r} is not a regular expression: {error}", next_step=_HELP
        ) from error
    if "table" not in compiled.groupindex:
        raise ConfigurationError(f"{where}: {text!r} has no group (?P<table>...)", next_step=_HELP)
    return compiled


def destination_of(
    success_path: str, regex: re.Pattern[str], fixed: Mapping[str, Any] | None = None
) -> FileDestination:
    """The destination of a batch, from the path of its success object. Keys of ``fixed`` (a `destinationTable`)
    override the path. Raises ConfigurationError."""
    match = regex.match(success_path)
    if match is None or not match["table"]:
        raise ConfigurationError(
            f"{success_path} does not match the expression {regex.pattern}, so its table is unknown",
            next_step="move it below <dataset>/<table>/, or set KBQ_FILES_DESTINATION_REGEX or destinationRegex",
        )
    fixed = fixed or {}
    groups = match.groupdict()
    project, dataset = fixed.get("projectId", ""), fixed.get("datasetId")
    if not dataset:
        own_project, _, dataset = (groups.get("dataset") or "").rpartition(".")
        project = project or own_project
    if not dataset:
        raise ConfigurationError(
            f"{success_path}: the expression {regex.pattern} finds no dataset, and there is no destinationTable "
            "with one",
            next_step="add a group (?P<dataset>...), or destinationTable with datasetId to load.json",
        )
    table, _, own = (fixed.get("tableId") or match["table"]).partition("$")
    decorator = f"${own}" if own else _decorator(groups)
    if decorator and not _DECORATOR.fullmatch(decorator):
        raise ConfigurationError(
            f"{success_path}: {decorator} is not a partition: expected $YYYY, $YYYYMM, $YYYYMMDD or $YYYYMMDDHH",
            next_step=_HELP,
        )
    return FileDestination(
        success_path[: match.end("table")].rstrip("/"),
        TableReference(dataset, table),
        decorator,
        project,
        groups.get("batch") or "",
    )


def _decorator(groups: Mapping[str, str | None]) -> str:
    if partition := groups.get("partition"):
        return partition
    parts = [groups.get(name) or "" for name in ("yyyy", "mm", "dd", "hh")]
    digits = "".join(f"{int(part):02}" if part.isdecimal() else part for part in parts if part)
    return f"${digits}" if digits else ""
