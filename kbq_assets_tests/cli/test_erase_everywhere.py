"""A canary person in every place that KBQ has: after an erasure a search of all bytes and by SQL finds nothing, and
every other row is the same."""

from __future__ import annotations

import itertools
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import duckdb
import pytest
from pyiceberg.catalog import load_catalog

from kbq_assets.adapters.iceberg.housekeeping import MAX_AGE, delete_orphans
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.erasure.erasures import Erasures
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.arrow.row_hash import row_hashes
from kbq_assets.wire.arrow.staged import StagedTables
from kbq_assets_tests.adapters.iceberg.test_erasure import hits
from kbq_assets_tests.adapters.iceberg.test_housekeeping import LATER
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.cli.test_erase import named
from kbq_assets_tests.cli.test_erase_warehouses import is_whole
from kbq_assets_tests.cli.test_warehouses import BOTH, TwoWarehouses
from kbq_assets_tests.fakes.platform import POISON, TOPIC
from kbq_assets_tests.sizes import ERASE_KILLS

CANARY = "canary-5c1e"
TABLES = ("orders", "kbq_errors")
PROTOBUF = 'syntax = "proto3"; message Order { string n = 1; }'


def document(name: str) -> bytes:
    """A JSON document with a name as text, and also nested where no column exists for it."""
    return json.dumps({"n": name, "list": [[name]]}).encode()


def message(name: str) -> bytes:
    """The first message of the schema 7."""
    return struct.pack(">bI", 0, 7) + bytes([0, 10, len(name)]) + name.encode()


#: Every format of a topic: its option, and a good record with a name.
FORMATS: tuple[tuple[str, Callable[[str], bytes]], ...] = (
    ("avro", named), ("json", document), ("json_columns", document), ("protobuf", message)
)  # fmt: skip


class Everywhere:
    """DuckDB and a lake, a backup, and staged files that nothing has loaded."""

    def __init__(self, folder: Path, format_: str = "avro", record: Callable[[str], bytes] = named) -> None:
        self.folder, self.record = folder, record
        warehouses = f"main=duckdb:{folder}/main.duckdb,lake=iceberg:{folder}/lake"
        options = f" error_share=1 backup=true format={format_}\n"
        self.world = TwoWarehouses(folder, warehouses, BOTH.strip() + options)
        self.world.registry.messages[7] = PROTOBUF
        self.run = Shell(self.world)

    def produce(self, *names: str) -> None:
        """A good record and a bad one of each."""
        for name in names:
            for value in (self.record(name), POISON + name.encode()):
                self.world.kafka.produce(TopicPartition(TOPIC, 0), value, key=name.encode())

    def cycle(self) -> None:
        self.run.done("extract")
        self.run.done("load")

    def quarantine(self) -> None:
        """No warehouse takes what is staged."""

        def refuse(self: StagedTables, uris: Iterable[str], files: object = None) -> Iterator[NoReturn]:
            raise BadFile(f"{next(iter(uris))}: not today")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StagedTables, "read", refuse)
            self.run.done("load")

    def retry(self) -> None:
        """What is in quarantine is loaded again."""
        for warehouse, table in itertools.product(("main", "lake"), TABLES):
            retried = ("quarantine", "retry", "--table", f"shop.{table}", "--yes")
            self.run.done("--warehouse", warehouse, *retried)

    def rows(self) -> dict[tuple[str, str], dict[int, str]]:
        """Every row as text or hash, by warehouse and table, then offset."""
        found = {}
        for table in TABLES:
            with duckdb.connect(f"{self.folder}/main.duckdb") as connection:
                all_ = connection.execute(f"SELECT _kafka_offset, * FROM shop.{table}").fetchall()
            found["main", table] = {row[0]: str(row[1:]) for row in all_}
            stored = self.catalog.load_table(("shop", table)).scan().to_arrow().combine_chunks().to_batches()
            found["lake", table] = {
                offset: str(value)
                for batch in stored
                for offset, value in zip(batch["_kafka_offset"].to_pylist(), row_hashes(batch), strict=True)
            }
        return found

    def sql(self) -> str:
        """Every row of every table in DuckDB, also of KBQ's own."""
        with duckdb.connect(f"{self.folder}/main.duckdb") as connection:
            names = "SELECT schema_name || '.' || table_name FROM duckdb_tables()"
            tables = [table for (table,) in connection.execute(names).fetchall()]
            return str([connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables])

    @property
    def catalog(self):  # type: ignore[no-untyped-def]
        """The lake, as any reader opens it."""
        return load_catalog(
            "kbq",
            type="sql",
            uri=f"sqlite:///{self.folder}/lake/catalog.db",
            warehouse=f"file://{self.folder}/lake",
        )

    def killed(self, number: int, point: int) -> int:
        """Resume an erasure by processes that are killed, until one ends; return how many were killed."""
        module = "kbq_assets_tests.cli.killed_erasure"
        command = [sys.executable, "-m", module, str(self.folder), str(number), str(point)]
        ended = subprocess.run(command, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        return int(ended.stdout)

    def expire(self) -> None:
        """Expire the lake's old snapshots immediately."""
        for table in TABLES:
            with self.catalog.load_table(("shop", table)).transaction() as transaction:
                transaction.set_properties({MAX_AGE: "0"})
        self.run.done("--warehouse", "lake", "expire")
        for table in TABLES:  # the files and manifests of killed commits, as after three days
            delete_orphans(self.catalog.load_table(("shop", table)), LATER)


@pytest.mark.slow
@pytest.mark.parametrize(("format_", "record"), FORMATS)
def test_a_canary_person_is_nowhere_after_an_erasure(
    tmp_path: Path, format_: str, record: Callable[[str], bytes]
) -> None:
    at = Everywhere(tmp_path, format_, record)
    at.produce("bert", CANARY, "carla")
    at.cycle()
    # In the quarantine of each warehouse, with a bad record of the error table.
    at.produce(CANARY, "quinn")
    at.run.done("extract")
    at.quarantine()
    # In a backlog: the lake's table is parked while windows come.
    at.run.done("--warehouse", "lake", "park", "--table", "shop.orders", "--yes")
    at.produce("dora", CANARY)
    at.run.done("extract")
    assert at.run("load").exit_code == 1  # a table is parked
    at.run.done("extract")
    # And in staged files that no warehouse has loaded.
    at.produce(CANARY, "emil")
    at.run.done("extract")
    before, places = at.rows(), hits(tmp_path, CANARY)
    for kind in ("/staging/", "/quarantine/1-", "/quarantine/lake/", "/backup/", ".parquet", "metadata/"):
        assert [path for path in places if kind in f"/{path}"], (kind, places)
    assert CANARY in at.sql()
    at.run.done("erase", "start", TOPIC, "--key", CANARY, "--yes")
    at.run.done("--warehouse", "lake", "resume", "--table", "shop.orders", "--yes")
    at.cycle()
    at.expire()
    assert hits(tmp_path, CANARY) == []
    at.retry()
    at.cycle()
    at.expire()
    assert hits(tmp_path, CANARY) == []
    after = at.rows()
    assert CANARY not in at.sql()
    canaries = {2, 3, 6, 7, 12, 13, 14, 15}
    for place, rows in before.items():
        assert {offset: after[place][offset] for offset in rows if offset not in canaries} == {
            offset: value for offset, value in rows.items() if offset not in canaries
        }
    for table, first in (("orders", 0), ("kbq_errors", 1)):
        for name in ("main", "lake"):
            assert sorted(after[name, table]) == [o for o in range(first, 18, 2) if o not in canaries]
    is_whole(at.run)
    at.run.done("backup", "verify", "--topic", TOPIC)
    at.run.done("erase", "verify", "1")


@pytest.mark.slow
def test_an_erasure_that_is_killed_at_every_step_ends_and_loses_nothing(tmp_path: Path) -> None:
    """Real processes are killed with `kill -9`, each one change later. Loads continue in between."""
    at, kills = Everywhere(tmp_path), 0
    at.produce("bert", "carla")
    at.cycle()
    for number in itertools.count(1):
        at.produce(CANARY)
        at.cycle()
        at.produce(CANARY, "quinn")
        at.run.done("extract")
        at.quarantine()
        at.produce(CANARY, "dora")
        at.run.done("extract")
        others = at.rows()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Erasures, "resume", lambda self, number: None)  # begun, and the process died
            at.run.done("erase", "start", TOPIC, "--key", CANARY, "--yes")
        kills += at.killed(number, 1 + kills // 2)
        at.retry()
        at.cycle()
        at.expire()
        assert hits(tmp_path, CANARY) == []
        after = at.rows()
        for place, rows in after.items():
            assert rows.items() >= {o: v for o, v in others[place].items() if o in rows}.items()
        for table, first in (("orders", 0), ("kbq_errors", 1)):
            mine = set(range(first, 4, 2)) | {
                4 + 10 * n + first + own for n in range(number) for own in (4, 8)
            }
            assert set(after["main", table]) == set(after["lake", table]) == mine
        is_whole(at.run)
        if kills >= ERASE_KILLS:
            break
