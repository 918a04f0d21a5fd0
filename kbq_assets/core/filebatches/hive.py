"""Columns of hive-partitioned paths (`hivePartitioningOptions`): `…/dt=2020-01-02/region=US/data.csv`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final
from urllib.parse import unquote

from kbq_assets.core.errors import ConfigurationError

_KEYS: Final = frozenset({"mode", "sourceUriPrefix", "requirePartitionFilter"})
_MODES: Final = ("AUTO", "STRINGS", "CUSTOM")
_PART: Final = re.compile(r"([\w\-]+)=([^/]*)")
_DECLARED: Final = re.compile(r"\{([\w\-]+):(\w+)\}")
_TYPES: Final = {"INTEGER": "INT64", "INT64": "INT64", "STRING": "STRING", "DATE": "DATE"}
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
#: Python also accepts week dates such as 2020-W01-1; warehouses do not.
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_HELP: Final = "docs/file-batches.md#hive-partitions"


def check_hive(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a key, mode or type that KBQ does not support."""
    if unknown := sorted(options.keys() - _KEYS):
        raise ConfigurationError(
            f"hivePartitioningOptions: unknown key {', '.join(unknown)}", next_step=_HELP
        )
    mode = options.get("mode", "AUTO")
    if mode not in _MODES:
        raise ConfigurationError(f"hivePartitioningOptions: unknown mode {mode!r}", next_step=_HELP)
    declared = _DECLARED.findall(str(options.get("sourceUriPrefix", "")))
    if mode == "CUSTOM" and not declared:
        raise ConfigurationError(
            "hivePartitioningOptions: mode CUSTOM needs keys in sourceUriPrefix, such as {dt:DATE}",
            next_step=_HELP,
        )
    for name, kind in declared:
        if kind.upper() not in _TYPES:
            raise ConfigurationError(
                f"hivePartitioningOptions: {name} has the type {kind}, and not {', '.join(sorted(_TYPES))}",
                next_step=_HELP,
            )


def hive_values(uri: str) -> tuple[tuple[str, str], ...]:
    """The keys and values in a file's path, in order."""
    folders = uri.rpartition("/")[0].split("/")
    return tuple((m[1], unquote(m[2])) for folder in folders if (m := _PART.fullmatch(folder)))


def hive_types(options: Mapping[str, Any], uris: Sequence[str]) -> dict[str, str]:
    """The BigQuery type of each key: declared, always STRING, or derived from the values of all files."""
    mode = options.get("mode", "AUTO")
    if mode == "CUSTOM":
        declared = _DECLARED.findall(str(options["sourceUriPrefix"]))
        return {name: _TYPES[kind.upper()] for name, kind in declared}
    values: dict[str, set[str]] = {}
    for uri in uris:
        for name, value in hive_values(uri):
            values.setdefault(name, set()).add(value)
    if mode == "STRINGS":
        return dict.fromkeys(values, "STRING")
    return {name: _type_of(found) for name, found in values.items()}


def _type_of(values: set[str]) -> str:
    if all(_WHOLE.fullmatch(value) for value in values):
        return "INT64"
    return "DATE" if all(map(_is_date, values)) else "STRING"


def _is_date(value: str) -> bool:
    try:
        return _DAY.fullmatch(value) is not None and bool(date.fromisoformat(value))
    except ValueError:
        return False
