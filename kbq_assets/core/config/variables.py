"""Declares `KBQ_*` variables on the dataclass fields that they set.

A field's declaration has everything about its variable: name, type, default, help text, and whether it is secret.
Parsing, `kbq settings` and the tables of docs/configuration.md all use these declarations.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from kbq_assets.core.config.locations import parse_staging
from kbq_assets.core.config.secret_references import FORMS, is_reference
from kbq_assets.core.errors import ConfigurationError

T = TypeVar("T")
_KEY: Final = "variable"
#: Python refuses to convert text of thousands of digits to a number.
_LONGEST: Final = 20
_URL: Final = re.compile(r"https?://[\w.:\[\]-]+(/[\w./-]*)?")


@dataclass(frozen=True)
class Variable:
    """One `KBQ_*` variable. ``help`` describes it without its default."""

    name: str
    help: str
    default: Any
    parse: Parser
    #: The default in words, if the value itself is not clear.
    shown_default: str = ""
    #: The default if the warehouse is BigQuery; None: the same default.
    on_bigquery: Any = None
    #: Whether to hide the value, unless it is a reference to a secret.
    secret: bool = False
    #: Whether parsing accepts only references, so the value is always safe to show.
    reference: bool = False
    #: Formats a parsed value to show it.
    show: Callable[[Any], str] = str

    @property
    def meaning(self) -> str:
        """Help text with the default in parentheses."""
        default = self.shown_default or ("" if self.default is dataclasses.MISSING else str(self.default))
        if isinstance(self.default, bool):
            default = default.lower()  # as users write it
        if self.on_bigquery is not None:
            default += f"; BigQuery: {self.on_bigquery}"
        return f"{self.help} ({default})" if default else self.help


#: Parses the text of a variable. Raises ConfigurationError that never shows a value that may be secret.
Parser: TypeAlias = Callable[[Variable, str], Any]


def text(variable: Variable, value: str) -> str:
    """The value, unchanged."""
    return value


def variable(
    name: str,
    help: str,
    default: Any = dataclasses.MISSING,
    parse: Parser = text,
    *,
    repr: bool = True,
    **more: Any,
) -> Any:
    """Declare the variable that sets a dataclass field. ``more`` are further fields of `Variable`. If there is no
    default, the caller of `parse_part` passes one."""
    declared = Variable(name, help, default, parse, **more)
    shown = repr and not declared.secret
    return dataclasses.field(default=default, repr=shown, metadata={_KEY: declared})


def whole(least: int = 0, most: int = sys.maxsize) -> Parser:

    def parse(variable: Variable, value: str) -> int:
        digits = value.removeprefix("-") if least < 0 else value
        if not digits.isascii() or not digits.isdigit():
            raise _refused(variable, "is not a whole number")
        if len(value) > _LONGEST or not least <= int(value) <= most:
            expected = f"{least} or more" if most == sys.maxsize else f"{least} to {most}"
            raise _refused(variable, f"is out of bounds: expected {expected}")
        return int(value)

    return parse


#: A switch by its other name: YAML reads `on` and `true` as the same.
_SAME: Final = {"on": "true", "true": "on", "off": "false", "false": "off"}


def choice(*choices: str) -> Parser:

    def parse(variable: Variable, value: str) -> str:
        value = _SAME[value] if value not in choices and _SAME.get(value) in choices else value
        if value not in choices:
            raise ConfigurationError(
                f"{variable.name}: unknown value {value!r}", next_step=f"use {_or(choices)}"
            )
        return value

    return parse


def url(variable: Variable, value: str) -> str:
    """Parse an http or https URL without user and query; "" for none."""
    if value and not _URL.fullmatch(value):
        raise _refused(variable, "is not an http or https URL")
    return value.rstrip("/")


def kms_key(variable: Variable, value: str) -> str:
    """Parse the name of a Cloud KMS key, without a version; "" for none."""
    if value and not re.fullmatch(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+", value):
        raise _refused(variable, "must be projects/P/locations/L/keyRings/R/cryptoKeys/K")
    return value


def reference(variable: Variable, value: str) -> str:
    """Parse a reference to a secret; "" for none."""
    if value and not is_reference(value):
        raise ConfigurationError(f"{variable.name} is not a reference", next_step=f"use {FORMS}")
    return value


def credentials(variable: Variable, value: str) -> str:
    """Parse a reference to Google credentials; "" for Application Default Credentials."""
    kind, _, target = value.partition(":")
    if value in ("", "anonymous") or (kind in ("file", "impersonate") and target):
        return value
    raise _refused(variable, "is not a reference to credentials")


def folder(variable: Variable, value: str) -> Path:
    """Parse a path, relative to the current folder."""
    return Path(value).absolute()


def place(variable: Variable, value: str) -> str:
    """Parse a folder or gs://bucket/prefix; "" for none."""
    if value:
        try:
            parse_staging(value)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{variable.name}: {error.message}",
                next_step="a folder, file:///folder or gs://bucket/prefix",
            ) from error
    return value


def parse_part(kind: type[T], environ: Mapping[str, str], **defaults: Any) -> T:
    """A dataclass set from its variables, including nested parts. ``defaults`` replace the declared defaults, and set
    fields without a variable."""
    values: dict[str, Any] = {
        name: parse_part(part, environ) for name, part in parts_in(kind) if name not in defaults
    }
    values |= defaults
    for name, declared in declared_in(kind):
        if declared.name in environ:
            values[name] = declared.parse(declared, environ[declared.name])
    return kind(**values)


def declared_in(kind: type) -> Iterator[tuple[str, Variable]]:
    for each in dataclasses.fields(kind):
        if _KEY in each.metadata:
            yield each.name, each.metadata[_KEY]


def parts_in(kind: type) -> Iterator[tuple[str, type]]:
    """Fields of a dataclass whose type is another dataclass."""
    types = typing.get_type_hints(kind)
    for each in dataclasses.fields(kind):
        if isinstance(part := types[each.name], type) and dataclasses.is_dataclass(part):
            yield each.name, part


def _refused(variable: Variable, why: str) -> ConfigurationError:
    return ConfigurationError(f"{variable.name} {why}", next_step=variable.meaning)


def _or(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
