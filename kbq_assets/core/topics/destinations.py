"""Templates for table names that are filled per record, and the names that records may choose.

    orders_{header.country|unknown}     {field.customer.tier}     {topic.2}_{record}     {key}

`{topic}` is the topic's name, `{topic.2}` the second of its parts, split at '.', '-' and '_'. `{record}` is the Avro
record's name without namespace. `{key}` and `{header.<name>}` are text in UTF-8; the last value of a repeated header
counts. `{field.<path>}` is a string, an enum, a boolean or an integer, and may be inside records and unions. The text
after '|' replaces a missing value.

Values become lower case, so no two tables differ only by case. Characters other than letters and digits become '_'. A
value that is missing, empty, not ASCII, or without any letter or digit cannot be part of a name.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.errors import ConfigurationError, InvalidName
from kbq_assets.core.protocol.done_files import check_fits
from kbq_assets.core.protocol.names import TableReference, sanitise_table
from kbq_assets.core.topics.personal import HEADERS, KEY, Decision, avro_path

#: Prefix of KBQ's own tables, such as those of error rows, also after an underscore.
RESERVED: Final = "kbq_"
_GRAMMAR: Final = (
    "{topic}, {topic.1}, {record}, {key}, {header.name}, {field.path}, each optionally with |default"
)
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_INPUT: Final = re.compile(r"topic(\.[1-9][0-9]*)?|record|key|header\..+|field\.[^.]+(\.[^.]+)*")
_SEPARATORS: Final = re.compile(r"[._-]")
#: BigQuery's tables and ours: see `TableReference`.
_MOST_CHARACTERS: Final = 200


@dataclass(frozen=True)
class Placeholder:
    """A value of a record. ``input``: topic, topic.<n>, record, key, header.<name> or field.<path>."""

    input: str
    default: str = ""


@dataclass(frozen=True)
class Template:
    """A name as a sequence of texts and placeholders. ``text`` is the original."""

    text: str
    parts: tuple[str | Placeholder, ...]

    def __str__(self) -> str:
        return self.text

    @property
    def is_template(self) -> bool:
        return is_template(self.text)

    def for_topic(self, topic: str) -> Template:
        """The template with the topic's placeholders filled in."""
        text = with_topic(self.text, topic)
        return self if text == self.text else parse_template("", text)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The distinct inputs that it needs from a record."""
        return tuple(dict.fromkeys(part.input for part in self.parts if isinstance(part, Placeholder)))


@dataclass(frozen=True)
class Unknown:
    """The reason that a record has no table."""

    why: str


def check_exposure(inputs: Iterable[str], decisions: Iterable[Decision], *, is_json: bool = False) -> None:
    """Raise ConfigurationError for an input that is personal data, because table names would show what its decision
    leaves of it. A field of a record has a second name, that of its column (`avro_path`); one of a document has not."""
    decided = {decision.path: decision.action for decision in decisions}
    if not decided:
        return
    named = str if is_json else avro_path
    hidden = [named(path) for path, action in decided.items() if action != "keep"]
    for name in inputs:
        source, _, path = name.partition(".")
        where = {"key": KEY, "header": HEADERS}.get(source, path)
        if source == "field":
            exposed = any(_is_within(named(path), each) for each in hidden)
        else:  # keys and headers need a decision to keep them
            exposed = where in (KEY, HEADERS) and decided.get(where) != "keep"
        if exposed:
            raise ConfigurationError(
                f"table: {name} would appear in table names, but pii= does not keep it",
                next_step=f"choose tables by another value, or decide {where}:keep",
            )


def _is_within(one: str, other: str) -> bool:
    """Whether one path is the other or a prefix of it, in either direction."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def check_datasets(dataset: Template, error_dataset: str) -> None:
    """Raise ConfigurationError for a name that no dataset can have. A template is checked once it is filled in; an
    ``error_dataset`` is none, and "" for ``dataset``."""
    named = [] if dataset.is_template else [("dataset", dataset.text)]
    named += [("error_dataset", error_dataset)] if error_dataset else []
    for option, name in named:
        try:
            TableReference(name, "t")
        except InvalidName as error:
            raise ConfigurationError(
                f"{option}={name} is not the name of a dataset",
                next_step="letters, digits and '_', at most 200 characters",
            ) from error


def check_known(known: Iterable[str]) -> None:
    """Raise ConfigurationError for names that differ only by case, and for words that are not patterns of names."""
    seen: dict[str, str] = {}
    for each in known:
        if not re.fullmatch(r"([\w*?\[\]!-]+\.)?[\w*?\[\]!-]+", each, re.ASCII):
            raise ConfigurationError(
                f"tables: {each!r} is not a name", next_step="table or dataset.table; * matches any text"
            )
        if seen.setdefault(each.lower(), each) != each:
            raise ConfigurationError(
                f"tables: {seen[each.lower()]} and {each} differ only by case", next_step="name one of them"
            )


def is_template(text: str) -> bool:
    """Whether a name has placeholders: any brace counts."""
    return "{" in text or "}" in text


def parse_template(option: str, text: str) -> Template:
    """Parse a name with placeholders. Raises ConfigurationError with a message that begins with the option."""
    parts: list[str | Placeholder] = []
    at = 0
    for found in _PLACEHOLDER.finditer(text):
        parts += [_literal(option, text, at, found.start()), _placeholder(option, found[1])]
        at = found.end()
    parts.append(_literal(option, text, at, len(text)))
    return Template(text, tuple(part for part in parts if part))


def check_input(option: str, name: str) -> None:
    """Raise ConfigurationError for an input that records do not have."""
    if not _INPUT.fullmatch(name):
        raise ConfigurationError(f"{option}: records have no {name!r}", next_step=_GRAMMAR)


def with_topic(text: str, topic: str) -> str:
    """A template's text with the topic's placeholders filled in. Placeholders for parts that the topic lacks remain, so
    no record gets a table."""
    return _PLACEHOLDER.sub(lambda found: _of_topic(topic, found[1]) or found[0], text)


def fill(template: Template, values: Mapping[str, str | None]) -> str | Unknown:
    """The name for a record's values, given by input. Values become lower case and valid in names."""
    name = ""
    for part in template.parts:
        if isinstance(part, str):
            name += part
            continue
        value = values.get(part.input) or part.default
        word = name_part(value)
        if word is None:
            return Unknown(f"{part.input} is missing or empty" if not value else _no_name(part.input, value))
        name += word
    return name


def name_part(value: str) -> str | None:
    """The record's value as a part of a name; None if unusable."""
    if len(value) > _MOST_CHARACTERS or not (value.isascii() and value.isprintable()):
        return None
    if not re.search("[A-Za-z0-9]", value):
        return None
    return re.sub(r"[^A-Za-z0-9_]", "_", value).lower()


def text_of(value: str | int | bool | bytes | None) -> str | None:
    """A record's value as text. Bytes that are not UTF-8 become text that is unusable in names."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


@dataclass(frozen=True)
class Names:
    """The names that a topic's records may choose. ``known`` are patterns of `table` or `dataset.table`, empty for all;
    ``create`` also allows names that match none."""

    topic: str
    dataset: str
    known: tuple[str, ...] = ()
    create: bool = False

    def table(self, dataset: str, table: str) -> TableReference | Unknown:
        """The table with a name, or the reason that records may not choose it."""
        dataset, table = self._listed(dataset, table)
        if max(len(dataset), len(table)) > _MOST_CHARACTERS:
            return Unknown(f"{dataset}.{table} has more than {_MOST_CHARACTERS} characters")
        if table.lower().startswith((RESERVED, f"_{RESERVED}")):
            return Unknown(f"{table} is reserved for KBQ's own tables")
        if not (self.create or self._is_known(dataset, table)):
            return Unknown(f"{dataset}.{table} is none of tables={','.join(self.known)}")
        reference = TableReference(dataset, table)
        return (
            reference if _fits(self.topic, reference) else Unknown(f"{reference} is too long for file names")
        )

    def _listed(self, dataset: str, table: str) -> tuple[str, str]:
        """The name as spelled in ``known``, if it differs only by case."""
        for each in self.known:
            if each.lower() == f"{dataset}.{table}".lower():
                dataset, _, table = each.partition(".")
            elif each.lower() == table.lower():
                table = each
        return dataset, table

    def _is_known(self, dataset: str, table: str) -> bool:
        name = table.lower()
        return not self.known or any(
            fnmatch.fnmatchcase(f"{dataset.lower()}.{name}" if "." in each else name, each.lower())
            for each in self.known
        )


def _literal(option: str, text: str, start: int, end: int) -> str:
    literal = text[start:end]
    if is_template(literal):
        raise ConfigurationError(f"{option}={text}: unmatched brace", next_step=_GRAMMAR)
    return sanitise_table(literal) if literal else ""


def _placeholder(option: str, text: str) -> Placeholder:
    name, bar, default = text.partition("|")
    check_input(option, name)
    if bar and name_part(default) is None:
        raise ConfigurationError(
            f"{option}: {{{text}}}: the default is not usable in names",
            next_step="write letters, digits and '_' after the bar",
        )
    return Placeholder(name, default)


def _of_topic(topic: str, text: str) -> str:
    name, _, default = text.partition("|")
    if name == "topic":
        return sanitise_table(topic)
    source, _, number = name.partition(".")
    if source != "topic" or not number.isdecimal():
        return ""
    parts = dict(enumerate(_SEPARATORS.split(topic), 1))
    return parts.get(int(number), "") or default


def _no_name(what: str, value: str) -> str:
    return f"{what} is {value[:100]!r}, unusable as a name"


def _fits(topic: str, table: TableReference) -> bool:
    """Whether the longest file name of the table's records is valid."""
    try:
        check_fits(topic, table)
    except InvalidName:
        return False
    return True
