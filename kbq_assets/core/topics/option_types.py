"""The types of options, with their parsers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, TypeAlias

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.observation.check_names import BLOCKABLE
from kbq_assets.core.topics.business_time import parse_business_time
from kbq_assets.core.topics.destinations import check_known, parse_template
from kbq_assets.core.topics.personal import parse_decisions

#: Parses an option's text, given its name. Raises ConfigurationError with a message that begins with the name.
OptionParser: TypeAlias = Callable[[str, str], Any]


@dataclass(frozen=True)
class OptionType:
    """The type of an option. ``kind`` is its type in a catalog: string, integer, number, boolean, switch, strings,
    map."""

    kind: str
    parse: OptionParser
    choices: tuple[str, ...] = ()


def choice(*choices: str) -> OptionType:

    def parse(name: str, text: str) -> str:
        if text not in choices:
            raise ConfigurationError(f"{name}={text}", next_step=f"one of {', '.join(choices)}")
        return text

    return OptionType("string", parse, choices)


def whole(least: int = 0) -> OptionType:
    """A whole number of at least ``least``."""
    return OptionType("integer", lambda name, text: _number(int, name, text, least))


def _number(kind: type[int] | type[float], name: str, text: str, least: int) -> int | float:
    try:
        value = kind(text)
    except ValueError as error:
        raise ConfigurationError(f"{name}={text}: {error}", next_step=f"expected {kind.__name__}") from error
    if not value >= least:
        raise ConfigurationError(f"{name}={text}", next_step=f"{least} or more")
    return value


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigurationError(f"{name}={text}", next_step="true or false")
    return text == "true"


def _day(name: str, text: str) -> int:
    """Days since 1970."""
    try:
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError as error:
        raise ConfigurationError(f"{name}={text}: {error}", next_step=f"{name}=2000-01-01") from error


TEXT: Final = OptionType("string", lambda name, text: text)
FLAG: Final = OptionType("boolean", _flag)
#: In a catalog, a boolean or `only`.
BACKUP: Final = OptionType("switch", choice("true", "false", "only").parse, ("only",))
DAY: Final = OptionType("string", _day)
SHARE: Final = OptionType("number", lambda name, text: _number(float, name, text, 0))
PRIORITIES: Final[Mapping[str, int]] = {"high": 8, "normal": 4, "low": 1}
_MAX_WEIGHT: Final = 100
#: Python refuses to convert text of thousands of digits to a number.
_LONGEST: Final = 18
#: https://cloud.google.com/bigquery/docs/clustered-tables#limitations
_MAX_CLUSTERING: Final = 4
_COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}")


def _route(name: str, text: str) -> str:
    if text not in ("topic", "record_name"):
        raise ConfigurationError(
            f"{name}={text}",
            next_step="topic or record_name; to choose a table per record, use a template in table=",
        )
    return text


def _tables(name: str, text: str) -> tuple[str, ...]:
    found = tuple(filter(None, text.split(",")))
    check_known(found)
    return found


def _clustering(name: str, text: str) -> tuple[str, ...]:
    columns = tuple(text.split(",")) if text else ()
    if len(columns) > _MAX_CLUSTERING or not all(map(_COLUMN.fullmatch, columns)):
        raise ConfigurationError(f"{name}={text}", next_step=f"at most {_MAX_CLUSTERING} columns: {name}=a,b")
    return columns


def _paths(name: str, text: str) -> tuple[str, ...]:
    found = tuple(filter(None, text.split(",")))
    names = [part for path in found for part in path.split(".")]
    if not all(map(_COLUMN.fullmatch, names)) or len(set(found)) < len(found):
        raise ConfigurationError(f"{name}={text}", next_step=f"columns: {name}=a,b.c")
    return found


def _path(name: str, text: str) -> str:
    if "," in text:
        raise ConfigurationError(f"{name}={text}", next_step=f"one column: {name}=a")
    return next(iter(_paths(name, text)), "")


def _warehouses(name: str, text: str) -> tuple[str, ...]:
    found = tuple(text.split(",")) if text else ()
    if len(set(found)) != len(found) or "" in found:
        raise ConfigurationError(f"{name}={text}", next_step=f"names of KBQ_WAREHOUSE: {name}=bq,lake")
    return found


def _blocking(name: str, text: str) -> frozenset[str]:
    found = frozenset(filter(None, text.split(","))) - {"none"}
    if unknown := sorted(found - set(BLOCKABLE)):
        raise ConfigurationError(
            f"{name}={text}: {unknown[0]} cannot block a load", next_step=f"none, or {', '.join(BLOCKABLE)}"
        )
    return found


def _weight(name: str, text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST else 0
    weight = PRIORITIES.get(text, number)
    if not 1 <= weight <= _MAX_WEIGHT:
        raise ConfigurationError(
            f"{name}={text}",
            next_step=f"{', '.join(PRIORITIES)}, or a whole number from 1 to {_MAX_WEIGHT}",
        )
    return weight


def _schema(name: str, text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name}: not JSON: {error}", next_step="a JSON Schema") from error


TEMPLATE: Final = OptionType("string", parse_template)
ROUTE: Final = OptionType("string", _route)
PRIORITY: Final = OptionType("string", _weight)
BUSINESS_TIME: Final = OptionType("string", lambda name, text: parse_business_time(text))
DECISIONS: Final = OptionType("map", lambda name, text: parse_decisions(text))
SCHEMA: Final = OptionType("string", _schema)
TABLES: Final = OptionType("strings", _tables)
PATHS: Final = OptionType("strings", _paths)
PATH: Final = OptionType("string", _path)
CLUSTERING: Final = OptionType("strings", _clustering)
WAREHOUSES: Final = OptionType("strings", _warehouses)
CHECKS: Final = OptionType("strings", _blocking)
