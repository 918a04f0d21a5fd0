"""BigQuery and a lake as the two warehouses of a topic, staged in a bucket: each is repaired by a replay of its own
(PROTOCOL R13), and each parses its error rows again. Against local servers; the broker and the registry are fakes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from kbq_assets.adapters.clock import SystemClock
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.definitions import Parts
from kbq_assets.ports.warehouse import ErrorRow
from kbq_assets.worker.adapters import open_store
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.fakes.platform import GOOD, POISON, TOPIC, FakePlatform
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer

pytestmark = [pytest.mark.thorough, pytest.mark.google]

#: A replay of error rows looks at every table of its project.
PROJECT: Final = f"two-warehouses-{os.getpid()}"
BOTH: Final = ("bq", "lake")
RANGE: Final = ("--from", "0:2,1:1", "--until", "0:4,1:2", "--yes")
Places = list[tuple[int, int]]
ALL: Final[Places] = [*((0, offset) for offset in range(6)), *((1, offset) for offset in range(3))]
MOVED: Final[Places] = [(0, 2), (0, 3), (1, 1)]
KEPT: Final[Places] = [place for place in ALL if place not in MOVED]
#: No Confluent value.
BAD: Final[Places] = [(0, 6), (1, 3)]


class GoogleAndLake(FakePlatform):
    """Both warehouses and the staging area as the settings say. Nine rows go to `sales`, the wrong table, and two
    records are bad."""

    def __init__(self, folder: Path, gcs: GcsServer, server: BigQueryServer, dataset: str) -> None:
        self.dataset = dataset
        super().__init__(
            folder,
            sources=self._list("sales"),
            environ={
                "KBQ_STAGING": f"gs://{gcs.new_bucket()}/kbq",
                "KBQ_GCS_ENDPOINT": gcs.endpoint,
                "KBQ_WAREHOUSE": f"bq=bigquery://{PROJECT}?location=US,lake=iceberg:{folder / 'lake'}",
                "KBQ_BIGQUERY_ENDPOINT": server.endpoint,
                "KBQ_EXTRACT_CREDENTIALS": "anonymous",
                "KBQ_LOAD_CREDENTIALS": "anonymous",
                "KBQ_POLL_SECONDS": "1",
                "KBQ_QUIET_SECONDS": "0",
            },
        )
        self.clock = SystemClock()  # type: ignore[assignment]
        self.store = open_store(self.settings)  # type: ignore[assignment]
        self.produce(6)
        self.produce(3, partition=1)
        for place in BAD:
            self.produce(partition=place[0], value=POISON)

    def _list(self, table: str) -> str:
        return f"{TOPIC} dataset={self.dataset} table={table} warehouses={','.join(BOTH)} error_share=1\n"

    def correct(self) -> None:
        """Records go to `orders` from now on."""
        self.source_topics.write_text(self._list("orders"))

    def reopened(self, **ports: Any) -> Parts:
        """Each warehouse, and its part in replays, opens as its settings say."""
        parts = super().reopened(**ports)
        del parts.adapters.warehouse
        del parts.adapters.replay_tables
        return parts

    def places(self, name: str, table: str) -> Places:
        """Partition and offset of each row of a warehouse's table; of its error table, of those that wait."""
        warehouse = self.reopened().for_warehouse(name).adapters.warehouse()
        own = TableReference(self.dataset, table)
        return sorted(
            (range_.partition, offset)
            for range_ in warehouse.kafka_ranges(own)
            for offset, rows in warehouse.positions(own, range_).items()
            for _ in range(rows)
        )

    def rows(self, name: str) -> tuple[Places, Places]:
        """Places of the rows of `sales` and of `orders`."""
        return self.places(name, "sales"), self.places(name, "orders")

    def side_tables(self, name: str) -> list[str]:
        """Shadows, and copies of former rows."""
        warehouse = self.reopened().for_warehouse(name).adapters.warehouse()
        own = [t.table for t in warehouse.tables() if t.dataset == self.dataset]
        return [name for name in own if name.startswith(("_kbq_replay_", "_kbq_former_"))]


@pytest.fixture
def world(gcs_server: GcsServer, bigquery_server: BigQueryServer, tmp_path: Path) -> Iterator[GoogleAndLake]:
    options = {"api_endpoint": bigquery_server.endpoint}
    with bigquery.Client(PROJECT, AnonymousCredentials(), client_options=options) as client:
        dataset = bigquery_server.new_dataset(PROJECT)
        yield GoogleAndLake(tmp_path, gcs_server, bigquery_server, dataset)
        client.delete_dataset(dataset, delete_contents=True)


@pytest.fixture
def run(world: GoogleAndLake) -> Shell:
    shell = Shell(world)
    cycle(shell)
    world.correct()
    return shell


def mended(row: ErrorRow) -> bytes:
    """The value of a bad record, as it should have been."""
    return GOOD


def is_whole(run: Shell) -> None:
    run.done("reconcile")
    run.done("reconcile", "--counts")
    run.done("check")


def test_a_wrong_route_is_repaired_in_bigquery_and_in_the_lake(world: GoogleAndLake, run: Shell) -> None:
    is_whole(run)
    for number, name in enumerate(BOTH, 1):
        run.done("--warehouse", name, "replay", "start", TOPIC, *RANGE)
        assert run.json("replay", "diff", str(number))["equal"] is False
        is_whole(run)
    for number, name in enumerate(BOTH, 1):
        run.done("replay", "promote", str(number), "--yes")
        assert world.rows(name) == (KEPT, MOVED)
        is_whole(run)
    world.produce(1)
    cycle(run)
    run.done("replay", "rollback", "1", "--yes")
    assert [world.rows(name) for name in BOTH] == [(ALL, [(0, 7)]), (KEPT, [*MOVED[:2], (0, 7), MOVED[2]])]
    is_whole(run)
    run.done("replay", "rollback", "2", "--yes")
    assert world.rows("lake") == (ALL, [(0, 7)])
    is_whole(run)
    for number, name in enumerate(BOTH, 1):
        run.done("replay", "promote", str(number), "--yes")
        run.done("replay", "accept", str(number), "--yes")
        assert world.rows(name) == (KEPT, [*MOVED[:2], (0, 7), MOVED[2]])
        assert world.side_tables(name) == []
    world.produce(1)
    cycle(run)
    is_whole(run)
    assert [world.places(name, "kbq_errors") for name in BOTH] == [BAD, BAD]
    assert list(world.store.list("replayed/")) == []


def test_error_rows_become_rows_in_bigquery_and_in_the_lake(world: GoogleAndLake, run: Shell) -> None:
    command = ("errors", "replay", "--topic", TOPIC, "--with", f"{__name__}:mended", "--yes")
    for done, name in enumerate(BOTH, 1):
        assert [world.places(each, "kbq_errors") for each in BOTH] == [[]] * (done - 1) + [BAD] * (3 - done)
        run.done("--warehouse", name, *command)
        assert (world.places(name, "kbq_errors"), world.rows(name)) == ([], (ALL, BAD))
        is_whole(run)
        assert "no error row waits" in run.done("--warehouse", name, *command)
    world.produce(1)
    cycle(run)
    assert [world.rows(name) for name in BOTH] == [(ALL, sorted([*BAD, (0, 7)]))] * 2
    is_whole(run)
