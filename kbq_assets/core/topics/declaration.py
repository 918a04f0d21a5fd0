"""Declares a topic's options on the dataclass fields that store them.

A field's declaration has everything about its option: name, type, default, choices, help text, and its place in a
catalog entry. The source list, the catalog, its JSON Schema and the tables in docs/ all use these declarations.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbq_assets.core.topics.option_types import OptionType

_KEY: Final = "option"


@dataclass(frozen=True)
class Option:
    """One option. ``default`` is the text to write in a source list."""

    name: str
    #: Markdown; links are relative to docs/.
    help: str
    default: str
    type: OptionType
    #: The default in words, if its text alone is not clear.
    shown_default: str = ""
    #: The dotted path of its key in a catalog entry. A declaration may leave it "" for the key of its name in its
    #: section; `declared_in` returns "" for options that the catalog derives.
    place: str = ""

    @property
    def plain_help(self) -> str:
        """The help text without links."""
        return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", self.help)


def option(default: str, type: OptionType, help: str, *, name: str = "", **more: Any) -> Any:
    """Declare the option of a dataclass field. ``name`` is set only if it differs from the field's; ``more`` are
    further fields of `Option`."""
    declared = Option(name, help, default, type, **more)
    return dataclasses.field(default=type.parse(name, default), metadata={_KEY: declared})


def declared_in(kind: type, section: str) -> Iterator[tuple[str, Option]]:
    """Fields of a dataclass with their options, completed with names and places. ``section`` is the section of a
    catalog entry for options that declare no place."""
    for each in dataclasses.fields(kind):
        declared: Option = each.metadata[_KEY]
        name = declared.name or each.name
        place = {"": f"{section}.{name}", NO_PLACE: ""}.get(declared.place, declared.place)
        yield each.name, dataclasses.replace(declared, name=name, place=place)


#: The place of options that the catalog derives from other keys.
NO_PLACE: Final = "-"


def text_of(value: object) -> str:
    """A catalog's or Python value as text for a source list: `true`, `a,b`, `email:drop,name:keep`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{each}" for key, each in value.items())
    return ",".join(value) if isinstance(value, list | tuple) else str(value)
