"""Declares a topic's options on the dataclass fields that hold them.

A field's declaration carries everything about its option: name, type, default, choices, help text, and its place in a
catalog entry. The source list, the catalog, its JSON Schema and the tables of docs/ all read these declarations.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kbq_assets.core.errors import ConfigurationError

_KEY: Final = "option"

#: From an option's name and its text to a typed value. Raises ConfigurationError that begins with the name.
OptionParser: TypeAlias = Callable[[str, str], Any]


@dataclass(frozen=True)
class OptionType:
    """How an option is written. ``kind`` is its type in a catalog: string, integer, number, boolean, strings, map."""

    kind: str
    parse: OptionParser
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """One option. ``default`` is text as in a source list."""

    name: str
    #: Markdown, whose links start in docs/.
    help: str
    default: str
    type: OptionType
    #: The default in words, where the text alone would not tell.
    shown_default: str = ""
    #: The dotted path of its key in a catalog entry; "" if the catalog derives it from something else.
    place: str = ""

    @property
    def plain_help(self) -> str:
        """The help text without links."""
        return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", self.help)


def option(default: str, type: OptionType, help: str, **more: Any) -> Any:
    """Declare the option of a dataclass field. ``more``: see `Option`; ``name`` if it differs from the field's."""
    value = type.parse(more.get("name", ""), default)
    return dataclasses.field(
        default=value, metadata={_KEY: Option(more.pop("name", ""), help, default, type, **more)}
    )


def declared_in(kind: type, section: str) -> Iterator[tuple[str, Option]]:
    """Fields of a dataclass with their options, complete with names and places. ``section`` holds those of a catalog
    entry that have no other place."""
    for each in dataclasses.fields(kind):
        declared: Option = each.metadata[_KEY]
        name = declared.name or each.name
        place = {"": f"{section}.{name}", NO_PLACE: ""}.get(declared.place, declared.place)
        yield each.name, dataclasses.replace(declared, name=name, place=place)


#: The place of options that a catalog derives from other keys.
NO_PLACE: Final = "-"


def text_of(value: object) -> str:
    """A value of a catalog, or of Python, as text of a source list: `true`, `a,b`, `email:drop,name:keep`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{each}" for key, each in value.items())
    return ",".join(value) if isinstance(value, list | tuple) else str(value)


def choice(*choices: str) -> OptionType:
    """One of the choices."""

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


TEXT: Final = OptionType("string", lambda name, text: text)
FLAG: Final = OptionType("boolean", _flag)
SHARE: Final = OptionType("number", lambda name, text: _number(float, name, text, 0))
