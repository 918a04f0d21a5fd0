"""`kbq erase` for a topic with several warehouses: each is erased separately, and one that is down delays no other."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kbq_assets.core.config.settings import Settings
from kbq_assets.core.erasure.model import Erasure
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.definitions import Adapters
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.cli.test_erase import CANARY, PERSON, named, staged, start
from kbq_assets_tests.cli.test_warehouses import BOTH
from kbq_assets_tests.fakes.platform import GOOD, POISON, TOPIC, FakePlatform
from kbq_assets_tests.fakes.replay import FakeReplayTables
from kbq_assets_tests.fakes.warehouse import FakeWarehouse

OTHERS_ROWS = [(0, 0), (0, 2), (1, 1)]


class TwoFakes(FakePlatform):
    """Two warehouses in memory: `main` and `lake`, which may be down."""

    def __init__(self, folder: Path, sources: str) -> None:
        self.down = False
        self.lake: FakeWarehouse | None = None
        super().__init__(
            folder,
            sources=sources,
            keep_records=True,
            environ={"KBQ_WAREHOUSE": f"main=duckdb:{folder}/a,lake=duckdb:{folder}/b"},
        )
        self.lake = FakeWarehouse(self.store, self.store.path_of, keep_records=True)

    def _over(self, live: Adapters, settings: Settings) -> Adapters:
        adapters = super()._over(live, settings)
        if settings.warehouse_area:
            adapters.warehouse = self.open_lake  # type: ignore[method-assign]
            adapters.replay_tables = lambda: FakeReplayTables(self.open_lake())  # type: ignore[method-assign]
        return adapters

    def open_lake(self) -> FakeWarehouse:
        if self.down:
            raise Unavailable("the lake is down", next_step="wait")
        assert self.lake is not None
        return self.lake


@pytest.fixture
def world(tmp_path: Path) -> TwoFakes:
    """Anna's records are 0:1, 0:3 (a bad one) and 1:0."""
    made = TwoFakes(tmp_path, BOTH.strip() + " error_share=1\n")
    for partition, key, value in (
        (0, b"bert", GOOD), (0, PERSON.encode(), named(PERSON)), (0, None, GOOD), (0, PERSON.encode(), POISON),
        (1, PERSON.encode(), GOOD), (1, b"bert", GOOD),
    ):  # fmt: skip
        made.kafka.produce(TopicPartition(TOPIC, partition), value, key=key)
    return made


@pytest.fixture
def run(world: TwoFakes) -> Shell:
    shell = Shell(world)
    shell.done("extract")
    shell.done("load")
    return shell


def rows(world: TwoFakes, warehouse: str, table: str = "orders") -> list[tuple[int, int]]:
    found = world.lake if warehouse == "lake" else world.warehouse
    assert found is not None
    return sorted((row.partition, row.offset) for row in found.rows(TableReference("shop", table)))


def is_whole(run: Shell) -> None:
    run.done("reconcile")
    run.done("reconcile", "--counts")
    run.done("check")


def test_an_erasure_covers_every_warehouse(world: TwoFakes, run: Shell) -> None:
    plan = run.done("erase", "plan", TOPIC, "--key", PERSON)
    assert "  shop.orders: 2 rows" in plan and "  lake: shop.orders: 2 rows" in plan
    assert "beyond reach: Kafka" in plan
    assert "lake/shop.orders: 2 rows deleted" in start(run)
    for name in ("main", "lake"):
        assert (rows(world, name), rows(world, name, "kbq_errors")) == (OTHERS_ROWS, [])
    is_whole(run)
    assert "everything is deleted" in run.done("--warehouse", "lake", "erase", "verify", "1")
    assert {w["totals"]["erased"] for w in run.json("reconcile", "--counts")["warehouses"].values()} == {3}


def test_a_plan_names_no_table_that_the_topic_does_not_feed(world: TwoFakes, run: Shell) -> None:
    world.source_topics.write_text(
        f"{BOTH}other dataset=shop table=others format=json warehouses=main,lake\n"
    )
    world.kafka.create_topic("other", 1)
    world.kafka.produce(TopicPartition("other", 0), b"{}")
    run.done("extract")
    run.done("load")
    assert rows(world, "lake", "others") == [(0, 0)]
    plan = run.done("erase", "plan", TOPIC, "--where", "n=1")
    assert "lake: shop.kbq_errors has no column n" in plan
    assert "shop.others" not in plan


def test_rows_are_found_by_a_column_in_a_warehouse_that_alone_has_them(world: TwoFakes, run: Shell) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders warehouses=lake error_share=1\n")
    world.kafka.produce(TopicPartition(TOPIC, 1), named(CANARY))
    run.done("extract")
    run.done("load")
    start(run, "--where", f"n={CANARY}")
    assert (1, 2) not in rows(world, "lake") and len(rows(world, "lake")) == len(rows(world, "main"))
    run.done("reconcile", "--counts")


def test_a_warehouse_that_is_down_delays_itself_alone_and_the_erasure_stays_open(
    world: TwoFakes, run: Shell
) -> None:
    world.down = True
    plan = run.done("erase", "plan", TOPIC, "--key", PERSON)
    assert "warehouse lake does not answer" in plan and "shop.orders: 2 rows" in plan
    assert run("erase", "start", TOPIC, "--key", PERSON, "--yes").exit_code == 75
    assert rows(world, "main") == OTHERS_ROWS
    shown = run.done("erase", "status", "1")
    assert "logged" in shown and "waits for warehouse lake" in shown and "next: kbq erase resume 1" in shown
    assert PERSON not in shown
    world.down = False
    is_whole(run)
    world.produce(1)
    run.done("extract")
    run.done("load")
    run.done("erase", "resume", "1")
    assert "waits" not in run.done("erase", "status", "1")
    assert rows(world, "lake") == rows(world, "main") == [*OTHERS_ROWS[:2], (0, 4), OTHERS_ROWS[2]]
    is_whole(run)


@pytest.mark.parametrize("loaded", ["", "main", "lake"])
def test_staged_files_are_written_again_for_each_warehouse(world: TwoFakes, run: Shell, loaded: str) -> None:
    for key in ("bert", CANARY, "bert"):
        world.kafka.produce(TopicPartition(TOPIC, 1), named(key), key=key.encode())
    run.done("extract")
    if loaded:
        run.done("--warehouse", loaded, "load")
    start(run, "--key", CANARY)
    assert CANARY not in staged(world)
    is_whole(run)
    run.done("load")
    for name in ("main", "lake"):
        assert [offset for partition, offset in rows(world, name) if partition == 1] == [0, 1, 2, 4]
    is_whole(run)
    assert list(world.store.list("staging/")) == []


def test_a_job_in_flight_of_another_warehouse_keeps_its_files(world: TwoFakes, run: Shell) -> None:
    """The lake is down while its job waits, so the file is rewritten only for the first warehouse."""
    for key in ("bert", CANARY):
        world.kafka.produce(TopicPartition(TOPIC, 1), named(key), key=key.encode())
    run.done("extract")
    world.down = True
    assert run("load").exit_code == 75
    assert run("erase", "start", TOPIC, "--key", CANARY, "--yes").exit_code == 75
    world.down = False
    run.done("load")
    run.done("erase", "resume", "1")
    for name in ("main", "lake"):
        assert [offset for partition, offset in rows(world, name) if partition == 1] == [0, 1, 2]
    is_whole(run)


def test_a_person_is_not_brought_back_by_a_reset_in_any_warehouse(world: TwoFakes, run: Shell) -> None:
    start(run)
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    run.done("extract")
    run.done("load")
    assert rows(world, "lake") == rows(world, "main") == sorted(2 * OTHERS_ROWS)
    is_whole(run)


def test_stored_erasures_of_the_last_release_are_read(world: TwoFakes, run: Shell) -> None:
    start(run)
    found = codec.loads(Erasure, world.store.get("erasures/1.json").data, "")
    alone = dataclasses.replace(found, others={})
    text = codec.dumps(alone).decode()
    assert (
        '"attempt":1' in text
        and '"rows":{"shop.kbq_errors":1,"shop.orders":2}' in text
        and "first" not in text
    )


def test_windows_after_an_erasure_count_as_they_were_given(world: TwoFakes, run: Shell) -> None:
    """Two erasures, and an extraction between them: neither is counted twice."""
    start(run)
    for key in ("bert", CANARY):
        world.kafka.produce(TopicPartition(TOPIC, 1), named(key), key=key.encode())
    run.done("extract")
    run.done("load")
    start(run, "--key", CANARY)
    is_whole(run)
