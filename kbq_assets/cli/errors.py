"""``kbq errors``: lists bad records, shows one as it arrived, or replays them."""

from __future__ import annotations

import base64
import importlib
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

import click

from kbq_assets.cli.context import (
    ExitCode,
    each_warehouse,
    json_option,
    one_warehouse,
    pass_operator,
    user,
    yes_option,
)
from kbq_assets.cli.render import console, echo_json, size, table
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference, quarantine_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.spelling import meant
from kbq_assets.core.topics.personal import SEALED
from kbq_assets.pipelines.errors_replay.reparse import Repair, Selection, replay_errors, waiting
from kbq_assets.pipelines.observation.documents import document
from kbq_assets.pipelines.operate.bad_records import Quarantined
from kbq_assets.pipelines.operate.operator import Operator
from kbq_assets.ports.warehouse import ErrorQuery, ErrorRow, KafkaRange
from kbq_assets.wire.records.reasons import Reason

#: Lists omit values.
_LISTED = "topic partition offset epoch timestamp_ms reason message schema_id value_size"
_LISTED_BYTES = 0


@click.group()
def errors() -> None:
    """Show bad records from the error tables, and replay them.

    \b
      kbq errors list --topic shop.orders.v1 --limit 5
      kbq errors show shop.orders.v1 0 4711
      kbq errors show shop.orders.v1 0 4711 --raw > record.bin
      kbq errors replay --topic shop.orders.v1
    """


@errors.command(name="list")
@click.option("--topic", help="Only this topic.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Number of records, newest first.",
)
@json_option
@each_warehouse
@pass_operator
def list_(operator: Operator, topic: str | None, limit: int, as_json: bool) -> None:
    """List bad records, newest first.

    Also lists files that the warehouse rejected. They are kept in quarantine/.
    """
    rows = operator.rejected.error_rows(ErrorQuery(topic, limit=limit, value_bytes=_LISTED_BYTES))
    quarantined = operator.rejected.files_of(topic)
    if topic and not rows and not quarantined:
        operator.rejected.check_topic(topic)
    if as_json:
        echo_json(
            {
                "errors": [document(row, _LISTED) for row in rows],
                "quarantined": [_quarantined_json(q) for q in quarantined],
            }
        )
        return
    out = console()
    shown = table("partition", "#offset", "time", "reason", "#size", "message", is_whole=True)
    for row in rows:
        place = (
            str(TopicPartition(row.topic, row.partition)),
            str(row.offset),
            _time(row.timestamp_ms, "seconds"),
        )
        shown.add_row(
            *place, row.reason, "null" if row.value_size is None else size(row.value_size), row.message
        )
    out.print(shown if rows else f"no bad records in {operator.deployment.settings.warehouse_url}")
    if quarantined:
        out.print("\nfiles that the warehouse rejected:")
    for q in quarantined:
        out.print(
            f"  {quarantine_path(q.bad.file.path)}: {counted(q.bad.file.rows, 'row')} for {q.table}: {q.bad.error}"
        )


@errors.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@click.option("--raw", is_flag=True, help="Write only the bytes of the value.")
@json_option
@one_warehouse
@pass_operator
def show(operator: Operator, topic: str, partition: int, offset: int, raw: bool, as_json: bool) -> None:
    """Show one bad record as it arrived.

    Prints the record's position, reason, key and headers, and its value as bytes, text and JSON.
    """
    rows = operator.rejected.error_rows_at(TopicPartition(topic, partition), offset)
    if raw:
        sys.stdout.buffer.write(rows[0].value or b"")
    elif as_json:
        echo_json([_row_json(row) for row in rows])
    else:
        topics = operator.deployment.sources.select([topic])
        is_personal = any(settings.privacy.decisions for settings in topics.values())
        for row in rows:
            for line in _lines(row, is_personal=is_personal):
                click.echo(line)


@errors.command()
@click.option("--topic", help="Only this topic.")
@click.option("--reason", help="Only error rows with this reason, such as UNKNOWN_SCHEMA.")
@click.option(
    "--with",
    "function",
    metavar="MODULE:FUNCTION",
    help="A Python function that takes an error row and returns the corrected value.",
)
@click.option(
    "--out-of-order",
    metavar="WHY",
    default="",
    help="Also add rows to ordered tables, after later rows, for this reason; kept in the table's audit list.",
)
@yes_option
@json_option
@one_warehouse
@pass_operator
def replay(
    operator: Operator,
    topic: str | None,
    reason: str | None,
    function: str | None,
    out_of_order: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Parse bad records again with today's schemas and options. Records that are good now become rows.

    A row keeps the record's partition, offset and epoch, and has the time in _kbq_replayed_at. The same transaction
    marks its error row, so a second replay adds nothing. In a lake, the rows are written first, then the marks; if the
    command dies in between, run it again. A table with load=upsert takes a row only if it is newer than the row with
    the same key; otherwise the error row is resolved without it. Exit code 1 if error rows remain.
    """
    repair = _function(function) if function else None
    found = _found(operator, topic, reason)
    if not as_json:
        for errors_table, range_, rows in found:
            tp = range_.topic_partition
            click.echo(f"{errors_table}: {tp} epoch {range_.epoch}: {counted(rows, 'error row')}")
    if found and not yes:
        click.confirm("replay them?", abort=True)
    chosen = Selection(topic, reason, repair, out_of_order.strip(), user())
    report = replay_errors(operator.rejected.replay_ports, chosen)
    if as_json:
        rows_by_table = {str(table): rows for table, rows in sorted(report.rows.items())}
        superseded = {str(table): rows for table, rows in sorted(report.superseded.items())}
        left = {"left": dict(report.left), "examples": report.examples}
        echo_json({"rows": rows_by_table, "superseded": superseded, **left})
    else:
        for table, rows in sorted(report.rows.items()):
            click.echo(f"{table}: {counted(rows, 'row')} added")
        for table, rows in sorted(report.superseded.items()):
            click.echo(f"{table}: {counted(rows, 'error row')} resolved: each key has a newer record")
        for why, rows in sorted(report.left.items()):
            click.echo(
                f"{counted(rows, 'error row stays', 'error rows stay')}: {why} ({report.examples[why]})"
            )
        if not report.rows and not report.superseded and not report.left:
            click.echo("no error row waits for a replay")
    sys.exit(ExitCode.FAILED if report.left else ExitCode.DONE)


def _found(
    operator: Operator, topic: str | None, reason: str | None
) -> list[tuple[TableReference, KafkaRange, int]]:
    """Numbers of error rows that a replay may change. Raises ConfigurationError or NotFound for a misspelled reason or
    topic."""
    if reason and reason not in Reason.__members__:
        raise ConfigurationError(
            f"no error row has the reason {reason}",
            next_step=meant(reason, Reason.__members__) or "kbq errors list shows the reasons",
        )
    found = waiting(operator.deployment.warehouse, topic, reason)
    if topic and not found:
        operator.rejected.check_topic(topic)
    return found


def _function(name: str) -> Repair:
    """The function of ``module:function``. Raises ConfigurationError."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise ConfigurationError(
            f"--with {name}: {type(error).__name__}: {error}", next_step="--with module:function"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"--with {name} is not a function", next_step="--with module:function")
    return cast("Repair", found)


def hex_dump(data: bytes) -> Iterator[str]:
    """Lines of 16 bytes: position, hexadecimal, ASCII."""
    for start in range(0, len(data), 16):
        chunk = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in chunk)
        yield f"{start:08x}  {chunk.hex(' '):<47}  {text}"


#: Reasons of records whose value was null when they arrived.
_NULL: Final = frozenset({"NULL_VALUE", "TOMBSTONE"})
_WITHHELD: Final = (
    "withheld (personal data: the topic has decisions about fields; pii_errors=seal keeps it, sealed)"
)


def _lines(row: ErrorRow, *, is_personal: bool) -> Iterator[str]:
    tp = TopicPartition(row.topic, row.partition)
    yield f"{tp} offset {row.offset}, epoch {row.epoch}, {_time(row.timestamp_ms)}"
    yield f"reason: {row.reason}: {row.message}"
    if row.schema_id is not None:
        yield f"schema id: {row.schema_id}"
    # Withheld parts are null, but so may be those of the record itself.
    is_withheld = is_personal and row.value is None and row.key is None and not row.headers
    if is_withheld:
        yield f"key and headers: {_WITHHELD}"
        yield f"value: {'null' if row.reason in _NULL else _WITHHELD}"
        return
    yield from _bytes_lines("key", row.key)
    for name, value in row.headers:
        yield from _bytes_lines(f"header {name}", value)
    if row.value is not None and row.value.startswith(SEALED):
        yield "value, key and headers are sealed: kbq pii open --key FILE --topic " + row.topic
    yield from _bytes_lines("value", row.value)
    if row.value is not None and (parsed := _parsed(row.value)) is not None:
        yield "value as JSON:"
        yield from (f"  {line}" for line in parsed.splitlines())


def _bytes_lines(name: str, data: bytes | None) -> Iterator[str]:
    if data is None:
        yield f"{name}: null"
        return
    text = _text(data)
    yield f"{name}: {size(len(data))}" + (f": {text}" if text is not None and "\n" not in text else "")
    yield from (f"  {line}" for line in hex_dump(data))


def _text(data: bytes) -> str | None:
    """UTF-8 bytes as text; None if they have control characters, because a terminal would interpret these."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if all(c.isprintable() or c in "\n\t" for c in text) else None


def _parsed(data: bytes) -> str | None:
    try:
        return json.dumps(json.loads(data), indent=2)
    except (ValueError, RecursionError):
        return None


def _time(timestamp_ms: int, precision: str = "milliseconds") -> str:
    if timestamp_ms < 0:
        return "no time"
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def _row_json(row: ErrorRow) -> dict[str, object]:
    return {
        **document(row, _LISTED),
        "key_base64": _base64(row.key),
        "value_base64": _base64(row.value),
        "headers": [{"key": name, "value_base64": _base64(value)} for name, value in row.headers],
    }


def _quarantined_json(q: Quarantined) -> dict[str, object]:
    file = q.bad.file
    return {
        "table": str(q.table),
        "path": quarantine_path(file.path),
        "rows": file.rows,
        "error": q.bad.error,
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
