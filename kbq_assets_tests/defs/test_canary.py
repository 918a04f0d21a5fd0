"""A canary in every place of personal data, through Dagster's own job: its plaintext is found nowhere afterwards.

Store, warehouse, Dagster's database, logs and output are real: searched as they lie on the disk and as they are read.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import fastavro
import pytest

from kbq_assets import definitions
from kbq_assets.adapters.clock import SystemClock
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.personal import with_new_key
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets.wire.privacy.sealing import new_key_pair
from kbq_assets.worker.adapters import open_pseudonyms, open_seal_key, open_store
from kbq_assets.worker.unit import WorkerPorts
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.fakes.kafka import FakeKafka
from kbq_assets_tests.fakes.platform import with_ports
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.wire.samples import avro_body, framed

CANARY = "canary-5f2b@example.com"
PHONE = 491511234567
#: In fields that are kept: what is searched for must be found where it is.
CONTROL = "control-77ac"
SCHEMA = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "email", "type": "string", "pii": "HIGH"},
        {"name": "phone", "type": ["null", "long"]},
        {"name": "home", "type": {"type": "record", "name": "Home", "fields": [
            {"name": "street", "type": "string"}, {"name": "city", "type": "string"}]}},
        {"name": "contacts", "type": {"type": "map", "values": "string"}},
        {"name": "note", "type": "string"},
        {"name": "aliases", "type": {"type": "array", "items": "string"}},
    ],
}  # fmt: skip
PERSON: Mapping[str, Any] = {
    "email": CANARY,
    "phone": PHONE,
    "home": {"street": CANARY, "city": CONTROL},
    "aliases": [CANARY, CANARY],
    "contacts": {CANARY: CANARY},
    "note": CONTROL,
}
PII = "email:pseudonym:p,phone:drop,home.street:null,aliases:pseudonym:p,contacts:drop,_key:pseudonym:p"
TOPICS = f"""
avro.seal       dataset=d table=a keys=true pii={PII} pii_errors=seal tombstones=error_table
avro.withhold   dataset=d table=b keys=true pii={PII} tombstones=row codec=deflate
json.payload    dataset=d table=c keys=true pii={PII} format=json pii_others=drop pii_errors=seal
json.columns    dataset=d table=e keys=true pii={PII} format=json_columns pii_others=drop pii_errors=drop
json.stopped    dataset=d table=f pii=email:drop,note:keep format=json_columns
json.kept       dataset=d table=g pii={PII} format=json_columns pii_others=keep
"""


def good(topic: str) -> bytes:
    if topic.startswith("avro"):
        return framed(avro_body(SCHEMA, PERSON), 8)
    # Next to the columns, and of other types than the actions expect.
    odd = {"more": {"deep": [CANARY]}, "phone": CANARY} if topic != "json.kept" else {"more": CONTROL}
    return json.dumps({**PERSON, **odd}).encode()


def bad(topic: str) -> list[bytes | None]:
    if topic.startswith("avro"):
        return [good(topic) + b"x", good(topic)[:-3], CANARY.encode(), None]
    return [good(topic)[:-1], b'{"email": "a", "email": "' + CANARY.encode() + b'"}', CANARY.encode(), None]


class Keeping(LocalObjectStore):
    """A store that keeps a copy of what is deleted: staged files are, once they are loaded."""

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        wanted = list(paths)
        for path in wanted:
            self.create(f"deleted/{uuid.uuid4().hex}/{path}", self.get(path).data)
        return super().delete_many(wanted)


class World:
    """The platform of an environment; broker, registry and the processes of units are fakes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.kafka, self.registry = FakeKafka(), FakeRegistry({8: json.dumps(SCHEMA)})
        (home / "topics.txt").write_text(TOPICS)
        (home / "keys.json").write_text(with_new_key("", "k1"))
        (home / "seal.pub").write_text(new_key_pair("s1")[1])
        environ = {
            "KBQ_HOME": str(home),
            "KBQ_SOURCE_TOPICS": str(home / "topics.txt"),
            "KBQ_PII_KEYS": f"file:{home}/keys.json",
            "KBQ_PII_SEAL_KEY": f"file:{home}/seal.pub",
            "KBQ_POLL_SECONDS": "1",
        }
        opened = definitions.parts(environ)
        settings = opened.adapters.settings
        worker = WorkerPorts(
            open_store(settings),
            self.kafka,
            self.registry,
            SystemClock(),
            pseudonyms=lambda: open_pseudonyms(settings),
            seal_key=lambda: open_seal_key(settings),
        )
        self.parts = with_ports(
            opened,
            load_store=lambda: Keeping(home / "staging"),
            offsets=lambda: self.kafka,
            source=lambda: self.kafka,
            expected=lambda: lambda tp: None,
            worker=lambda: worker,
        )
        self.engine = InProcessEngine(worker)

    def produce(self) -> None:
        for line in TOPICS.split("\n"):
            if line:
                topic = line.split()[0]
                self.kafka.create_topic(topic, 1)
                # Bad ones last: they hold up nothing.
                for value in (good(topic), good(topic), *bad(topic)):
                    headers = [("h", CANARY.encode())]
                    self.kafka.produce(
                        TopicPartition(topic, 0), value, key=CANARY.encode(), timestamp=1000, headers=headers
                    )

    def run(self, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
        engine = dg.ResourceDefinition.hardcoded_resource(self.engine)
        job = self.parts.definitions(resources={ENGINE: engine}).resolve_job_def("extract_and_load")
        return job.execute_in_process(instance=instance, raise_on_error=False)


# What is searched


def disguises(text: str) -> set[bytes]:
    """A text as it is, in hexadecimal, and in base64 wherever it begins."""
    raw = text.encode()
    shifted = [base64.b64encode(b"x" * skip + raw)[4 if skip else 0 : -4] for skip in range(3)]
    return {raw, raw.hex().encode(), *shifted}


def texts_of(path: Path) -> Iterator[bytes]:
    """A file as it is, and as it is read."""
    data = path.read_bytes()
    yield data
    if data.startswith(b"Obj\x01"):
        yield from (_text(row) for row in fastavro.reader(io.BytesIO(data)))
    elif data.startswith(b"SQLite format 3"):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            for (table,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall():
                yield from map(_text, connection.execute(f'SELECT * FROM "{table}"'))
    elif path.suffix == ".duckdb":
        with duckdb.connect(str(path), read_only=True) as database:
            names = "SELECT schema_name, table_name FROM duckdb_tables()"
            for schema, table in database.execute(names).fetchall():
                yield from map(_text, database.execute(f'SELECT * FROM "{schema}"."{table}"').fetchall())


def _text(row: object) -> bytes:
    """Rows as text, bytes in them as they are."""
    if isinstance(row, bytes):
        return row
    if isinstance(row, Mapping):
        return b"|".join(_text(each) for pair in row.items() for each in pair)
    if isinstance(row, list | tuple):
        return b"|".join(map(_text, row))
    return str(row).encode()


def found(folder: Path, text: str) -> set[str]:
    """Kinds of files, by their first folder or their name, in which a text is."""
    wanted = disguises(text)
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).parts[0]
        for path in files
        if any(each in data for data in texts_of(path) for each in wanted)
    }


@pytest.fixture
def world(tmp_path: Path) -> World:
    home = tmp_path / "home"
    home.mkdir()
    return World(home)


def test_the_canary_is_found_nowhere_and_what_is_kept_everywhere_it_belongs(
    world: World, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.WARNING, "numba")  # compiling, it tells of every variable
    world.produce()
    (world.home / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(world.home / "dagster")) as instance:
        result = world.run(instance)
        events = b"\n".join(str(event).encode() for event in result.all_events)
    accounts = world.parts.reconciler.reconcile()
    totals = accounts.totals()
    assert (totals["loaded"], totals["errors"], totals["skipped"]) == (11, 15, 4)
    printed = "".join(capfd.readouterr())
    for secret in (CANARY, str(PHONE)):
        assert found(world.home, secret) == set()
        for text in (events, caplog.text.encode(), printed.encode(), str(accounts).encode()):
            assert not [each for each in disguises(secret) if each in text]
    assert found(world.home, CONTROL) == {"staging", "warehouse.duckdb"}
    assert "dagster" in found(world.home, "json.stopped")
