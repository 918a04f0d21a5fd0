"""``kbq pii``: makes, rotates and uses the keys for personal data."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kbq_assets.cli.context import json_option, pass_deployment, pass_operator
from kbq_assets.core.errors import ConfigurationError, EncodingError

if TYPE_CHECKING:
    from kbq_assets.core.config.settings import Settings
    from kbq_assets.core.topics.personal import Pseudonyms
    from kbq_assets.pipelines.deployment import Deployment
    from kbq_assets.pipelines.operate.operator import Operator
    from kbq_assets.wire.privacy.sealed_rows import OpenedRow
    from kbq_assets.wire.privacy.sealing import OpeningKeys

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def pii() -> None:
    """Manage keys for personal data: seal keys for error rows, and pseudonym keys.

    \b
      kbq pii keygen seal-2026.key                     a private key and its public key
      kbq pii open --key seal-2026.key --topic t       open sealed error rows
      kbq pii new-key pseudonyms.json                  rotate: make a new key the current one
      kbq pii pseudonym --context customer < value     find a person in the tables
    """


@pii.command()
@click.argument("private", type=_FILE)
@click.option("--id", "name", help="The key's name in sealed rows; by default the file's name.")
def keygen(private: Path, name: str | None) -> None:
    """Make a key pair that seals error rows: PRIVATE, which only you can read, and PRIVATE.pub.

    Workers need the public key: set KBQ_PII_SEAL_KEY=file:PRIVATE.pub, or another reference to its text. Keep the
    private key and a backup of it away from the hosts that run KBQ: nothing else opens sealed rows.
    """
    from kbq_assets.adapters import key_files
    from kbq_assets.wire.privacy.sealing import new_key_pair

    secret, public = new_key_pair(name or private.stem)
    key_files.create(private, secret)
    key_files.create(private.with_name(f"{private.name}.pub"), public, public=True)
    click.echo(f"wrote {private} and {private}.pub; next: KBQ_PII_SEAL_KEY=file:{private.absolute()}.pub")


@pii.command(name="new-key")
@click.argument("file", type=_FILE)
@click.option("--id", "name", help="First part of new pseudonyms; by default today's date.")
def new_key(file: Path, name: str | None) -> None:
    """Add a pseudonym key to FILE and make it the current one; create FILE if it does not exist.

    New pseudonyms have the new key's id, and old ones keep theirs; `kbq pii pseudonym` prints all of them. If a secret
    manager holds FILE's text, store the new text there.
    """
    from kbq_assets.adapters import key_files
    from kbq_assets.core.topics.personal import with_new_key

    name = name or datetime.now(UTC).strftime("%Y-%m-%d")
    before = key_files.read(file) if file.exists() else ""
    text = with_new_key(before, name)
    if before:
        key_files.replace(file, text)
    else:
        key_files.create(file, text)
    click.echo(f"{file}: the current key is {name}; workers use it within five minutes")
    if not before:
        click.echo(f"next: KBQ_PII_KEYS=file:{file.absolute()}")


@pii.command()
@click.option(
    "--context",
    required=True,
    help="CONTEXT of the decision pseudonym:CONTEXT; without one, the field's path.",
)
@json_option
@pass_deployment
def pseudonym(deployment: Deployment, context: str, as_json: bool) -> None:
    """Print the pseudonyms of a value in the tables, one for each key in KBQ_PII_KEYS.

    The value is read from standard input, so it appears in no process list or shell history; a newline at its end is
    dropped. Write numbers as Python does. To find a person's rows, query WHERE customer IN (…) with the printed
    values; to erase them, use kbq erase with --pseudonym-of-file.
    """
    names = pseudonym_keys(deployment.settings).under_each_key(context, _value())
    if as_json:
        click.echo(json.dumps(names))
    else:
        click.echo("\n".join(names.values()))


def pseudonym_keys(settings: Settings) -> Pseudonyms:
    """The pseudonym keys. Raises ConfigurationError if there are none."""
    from kbq_assets.worker.adapters import open_pseudonyms

    found = open_pseudonyms(settings)
    if found is None:
        raise ConfigurationError("no pseudonym keys are configured", next_step="set KBQ_PII_KEYS")
    return found


def _value() -> bytes:
    if sys.stdin.isatty():
        return str(click.prompt("value", hide_input=True)).encode()
    value = sys.stdin.buffer.read()
    return value.removesuffix(b"\n").removesuffix(b"\r")


class _Sealed(NamedTuple):
    """A sealed value with its position and its row's other fields."""

    topic: str
    partition: int
    offset: int
    value: bytes
    row: dict[str, Any]


@pii.command(name="open")
@click.option(
    "--key", "keys", type=_FILE, multiple=True, required=True, help="File of a private key; may be repeated."
)
@click.option("--topic", help="Only this topic.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Number of rows, newest first.",
)
@click.option("--stdin", "from_stdin", is_flag=True, help="Read rows as JSON lines from standard input.")
@pass_operator
def open_rows(
    operator: Operator, keys: Sequence[Path], topic: str | None, limit: int, from_stdin: bool
) -> None:
    """Print sealed error rows as they were produced, as JSON lines: value, key and headers.

    Reads rows from the warehouse or, with --stdin, the output of `kbq errors show --json` or of a BigQuery export:
    topic, partition, offset and the value as base64. Skips rows that are not sealed; exit code 1 if one does not open.
    """
    opening = _opening_keys(keys)
    found = _of_lines(sys.stdin) if from_stdin else _of_warehouse(operator, topic, limit)
    failed = 0
    for sealed in found:
        try:
            click.echo(json.dumps(_opened(sealed, opening), ensure_ascii=False))
        except EncodingError as error:
            failed += 1
            click.echo(f"{sealed.topic}/{sealed.partition} offset {sealed.offset}: {error.message}", err=True)
    sys.exit(1 if failed else 0)


def _opening_keys(paths: Sequence[Path]) -> OpeningKeys:
    from kbq_assets.adapters import key_files
    from kbq_assets.wire.privacy.sealing import OpeningKeys, parse_opening_key

    parsed = [parse_opening_key(key_files.read(path)) for path in paths]
    return OpeningKeys({name: key for each in parsed for name, key in each.keys.items()})


def _of_warehouse(operator: Operator, topic: str | None, limit: int) -> Iterator[_Sealed]:
    from kbq_assets.ports.warehouse import ErrorQuery
    from kbq_assets.wire.privacy.sealing import is_sealed

    for row in operator.rejected.error_rows(ErrorQuery(topic, limit=limit)):
        if row.value is not None and is_sealed(row.value):
            said = {"epoch": row.epoch, "reason": row.reason, "message": row.message}
            yield _Sealed(row.topic, row.partition, row.offset, row.value, said)


def _of_lines(lines: Iterable[str]) -> Iterator[_Sealed]:
    from kbq_assets.wire.privacy.sealing import is_sealed

    for number, line in enumerate(lines, 1):
        try:
            for row in _rows(json.loads(line)):
                value = base64.b64decode(_first(row, "value_base64", "value") or "", validate=True)
                if is_sealed(value):
                    place = [_first(row, f"_kafka_{name}", name) for name in ("topic", "partition", "offset")]
                    yield _Sealed(str(place[0]), int(place[1]), int(place[2]), value, _said(row))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigurationError(
                f"line {number} is not an error row",
                next_step="JSON with topic, partition, offset and value_base64",
            ) from None


def _rows(document: Any) -> list[dict[str, Any]]:
    return document if isinstance(document, list) else [document]


def _first(row: dict[str, Any], *names: str) -> Any:
    return next((row[name] for name in names if name in row), None)


def _said(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("epoch", "reason", "message") if name in row}


def _opened(sealed: _Sealed, keys: OpeningKeys) -> dict[str, Any]:
    from kbq_assets.wire.privacy.sealed_rows import open_row

    opened: OpenedRow = open_row(sealed.value, keys, sealed.topic, sealed.partition, sealed.offset)
    headers = [{"key": name, **_shown("value", value)} for name, value in opened.headers]
    place = {"topic": sealed.topic, "partition": sealed.partition, "offset": sealed.offset}
    parts = {**_shown("key", opened.key), **_shown("value", opened.value)}
    return {**place, **sealed.row, **parts, "headers": headers}


def _shown(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes as text if they are UTF-8, otherwise as base64."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
