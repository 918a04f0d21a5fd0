"""Whose records are erased: by the key of a record, by a value of a column, or by the tombstones of
another topic. A value never leaves the process."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbq_assets.core.errors import ConfigurationError


@dataclass(frozen=True)
class PersonRecords:
    """The records of a person: those with one of these keys, and rows where a column has a value."""

    keys: frozenset[bytes] = field(default=frozenset(), repr=False)
    columns: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    #: a topic whose tombstones name more keys; "" for none
    tombstones: str = ""

    def __post_init__(self) -> None:
        if not (self.keys or self.columns or self.tombstones):
            raise ConfigurationError(
                "whose records? nothing is chosen",
                next_step="choose by --key-file, --key, --where-file, --where or --tombstones",
            )
        if b"" in self.keys or any(not column for column, _ in self.columns):
            raise ConfigurationError("a key and a column must not be empty", next_step="check the input")


def parse_column(text: str) -> tuple[str, str]:
    """``column=value``. Raises ConfigurationError, which does not repeat the value."""
    column, separator, value = text.partition("=")
    if not separator or not column.strip():
        raise ConfigurationError("--where wants column=value", next_step="--where customer.id=4711")
    return column.strip(), value
