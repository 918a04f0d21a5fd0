"""Selects the records to erase by key, by value of a column, by the tombstones of another topic, or by position. A
column may contain pseudonyms of the value. The values never leave the process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kbq_assets.core.erasure.positions import RecordPosition
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.column_names import snake_case
from kbq_assets.core.topics.evolution import Evolution
from kbq_assets.core.topics.personal import KEY, Decision, Pseudonyms, avro_path


@dataclass(frozen=True)
class PersonRecords:
    """The records of a person: those with one of these keys or positions, and rows with one of these column values."""

    keys: frozenset[bytes] = field(default=frozenset(), repr=False)
    columns: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    #: a topic whose tombstones have more keys; "" for none
    tombstones: str = ""
    positions: frozenset[RecordPosition] = frozenset()

    def __post_init__(self) -> None:
        if not (self.keys or self.columns or self.tombstones or self.positions):
            raise ConfigurationError(
                "no records are selected",
                next_step="use --key-file, --where-file, --pseudonym-of-file, --tombstones or --positions-file",
            )
        if b"" in self.keys or any(not column for column, _ in self.columns):
            raise ConfigurationError("a key and a column must not be empty", next_step="check the input")


def parse_column(text: str) -> tuple[str, str]:
    """Parse ``column=value``. Raises ConfigurationError that does not repeat the value."""
    column, separator, value = text.partition("=")
    if not separator or not column.strip():
        raise ConfigurationError(
            "--where and --pseudonym-of take column=value", next_step="--where customer.id=4711"
        )
    return column.strip(), value


def pseudonyms_in(
    columns: Iterable[tuple[str, str]], decisions: Sequence[Decision], known: Pseudonyms
) -> Iterator[tuple[str, str]]:
    """Pairs of column and pseudonym, for every pseudonym that the column may contain for a value: one per key and
    context. Raises ConfigurationError for a column without pseudonyms."""
    hidden = [each for each in decisions if each.action == "pseudonym"]
    for column, value in columns:
        contexts = sorted({each.context for each in hidden if common_name(each.path) == common_name(column)})
        if not contexts:
            raise ConfigurationError(
                f"the topic's options make no pseudonyms of the column {column}",
                next_step=f"columns with pseudonyms: {', '.join(each.path for each in hidden) or 'none'}; for a former"
                " decision, give --where-file the output of kbq pii pseudonym",
            )
        for context in contexts:
            for pseudonym in known.under_each_key(context, value.encode()).values():
                yield column, pseudonym


def common_name(column: str) -> str:
    name = ".".join(map(snake_case, avro_path(column).split(".")))
    return KEY if name == "_kafka_key" else name


def variants_in(
    columns: Iterable[tuple[str, str]], evolutions: Collection[Evolution]
) -> Iterator[tuple[str, str]]:
    """Pairs of variant column and value: the other columns that may contain a column's field (PROTOCOL E11)."""
    for column, value in columns:
        for each in evolutions:
            if each.column and f"{column}.".lower().startswith(f"{each.origin}.".lower()):
                yield each.column + column[len(each.origin) :], value
