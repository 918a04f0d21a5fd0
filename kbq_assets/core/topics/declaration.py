"""Declares a topic's options on the dataclass fields that hold them.

A field's declaration carries everything about its option: name, type, default, choices, help text, and its place in a
catalog entry. The source list, the catalog, its JSON Schema and the tables of docs/ all read these declarations.
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
    """One option. ``default`` is text as in a source list."""

    name: str
    #: Markdown, whose links start in docs/.
    help: str
    default: str
    type: OptionType
    #: The default in words, if the text alone is not clear.
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
