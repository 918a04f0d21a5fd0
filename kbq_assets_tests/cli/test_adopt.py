"""A staging area and a warehouse that do not belong together stop, and each documented fix makes them work again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import POISON, TOPIC, FakePlatform
from kbq_assets_tests.fakes.warehouse import Row

ORDERS, ERRORS = (TableReference("shop", name) for name in ("orders", "kbq_errors"))


def cycle(world: FakePlatform, run: Shell, *, produced: int = 2) -> tuple[int, str]:
    """Produce, extract and load; the load's exit code and what it printed."""
    world.produce(produced)
    run.done("extract")
    result = run("load")
    return result.exit_code, result.output


def offsets(world: FakePlatform, table: TableReference = ORDERS) -> list[int]:
    return [row.offset for row in world.warehouse.rows(table)]


def assert_green(world: FakePlatform, run: Shell) -> None:
    code, text = cycle(world, run)
    assert (code, "parked" in text) == (0, False)
    run.done("check")


def test_a_fresh_staging_area_doubles_nothing_and_setting_it_back_continues(
    world: FakePlatform, loaded: Shell
) -> None:
    right = dict(world.store.objects)
    world.store.objects.clear()
    code, text = cycle(world, loaded)
    assert (code, offsets(world), offsets(world, ERRORS)) == (1, [0, 1, 2], [3])
    assert "foreign_rows" in text
    assert "memory:///tables" in text
    assert "kbq adopt --table shop.orders" in text
    assert loaded("check").exit_code == 1
    assert "kbq adopt --table shop.orders" in loaded.done("status")

    world.store.objects = right
    assert_green(world, loaded)
    assert offsets(world) == [0, 1, 2, 4, 5, 6, 7]
    assert "every record accounted for: yes" in loaded.done("reconcile")


def test_an_operator_may_feed_a_table_from_a_new_staging_area(world: FakePlatform, loaded: Shell) -> None:
    old = dict(world.store.objects)
    world.store.objects.clear()
    cycle(world, loaded)
    result = loaded("adopt", "--table", "shop.orders", "--table", "shop.kbq_errors", answer="n\n")
    assert "become visible twice" in result.output
    assert "nothing was changed" in result.output
    loaded.done("adopt", "--table", "shop.orders", "--table", "shop.kbq_errors", "--yes")
    assert_green(world, loaded)
    assert sorted(offsets(world)) == [0, 0, 1, 1, 2, 2, 4, 5, 6, 7]

    world.store.objects = old  # comes back: its rows would be doubled now
    assert cycle(world, loaded)[0] == 1
    assert len(offsets(world)) == 10


def test_a_table_that_is_gone_stops_until_the_warehouse_is_restored(
    world: FakePlatform, loaded: Shell
) -> None:
    backup = dict(world.warehouse.stored)
    world.warehouse.stored.clear()
    code, text = cycle(world, loaded)
    assert (code, offsets(world)) == (1, [])
    assert "it does not exist, but KBQ loaded 3 rows into it" in text

    world.warehouse.stored.update(backup)
    loaded.done("resume", "--table", "shop.orders", "--yes")
    assert_green(world, loaded)
    assert offsets(world) == [0, 1, 2, 4, 5, 6, 7]


def test_a_table_that_is_gone_can_be_loaded_again_from_kafka(world: FakePlatform, loaded: Shell) -> None:
    world.warehouse.stored.clear()
    world.warehouse.log.clear()
    cycle(world, loaded)
    text = loaded.done("adopt", "--table", "shop.orders", "--yes")
    assert f"kbq reset --topic {TOPIC}" in text
    loaded.done("load")
    assert offsets(world) == [4, 5]
    loaded.done("reset", "--topic", TOPIC, "--yes")
    cycle(world, loaded)
    assert loaded("adopt", "--table", "shop.kbq_errors", "--yes").exit_code == 0
    assert_green(world, loaded)
    assert sorted({row.offset for row in world.warehouse.rows(ORDERS) if row.epoch == 2}) == [
        0,
        1,
        2,
        *range(4, 10),
    ]
    assert offsets(world, ERRORS) == [3]


def test_a_table_that_was_made_anew_by_hand_stops(world: FakePlatform, loaded: Shell) -> None:
    table = world.warehouse.stored[ORDERS]
    table.rows.clear()
    table.labels.clear()
    assert "it is empty and was created anew" in cycle(world, loaded)[1]
    loaded.done("adopt", "--table", "shop.orders", "--yes")
    assert_green(world, loaded)


def test_rows_that_someone_deleted_and_labels_that_someone_removed_stop_nothing(
    world: FakePlatform, loaded: Shell
) -> None:
    world.warehouse.stored[ERRORS].rows.clear()
    world.produce(value=POISON)
    world.warehouse.stored[ORDERS].labels.clear()
    assert cycle(world, loaded)[0] == 0
    assert (offsets(world), offsets(world, ERRORS)) == ([0, 1, 2, 5, 6], [4])


def test_a_table_with_a_users_own_rows_may_be_fed(world: FakePlatform, run: Shell) -> None:
    world.produce(1)
    run.done("extract")
    run.done("load")
    table = world.warehouse.stored[ORDERS]
    table.labels.clear()
    table.columns = tuple(c for c in table.columns if not c.name.startswith("_k"))
    world.store.objects.clear()
    assert cycle(world, run)[0] == 0


def test_nothing_to_adopt_is_refused(loaded: Shell) -> None:
    assert loaded("adopt", "--table", "shop.orders", "--yes").exit_code == 3
    assert loaded("adopt", "--table", "shop.other", "--yes").exit_code == 1


def test_of_two_staging_areas_that_create_one_table_one_stops(
    world: FakePlatform, run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.produce(3)
    run.done("extract")
    create = world.warehouse.create_table

    def late(table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        """The other staging area creates the table between the look and the creation, and loads."""
        create(table, columns, options)
        world.warehouse.stored[table].labels["kbq_staging"] = "another"
        world.warehouse.stored[table].rows.append(Row(1, TOPIC, 0, 0))

    monkeypatch.setattr(world.warehouse, "create_table", late)
    result = run("load")
    assert (result.exit_code, "foreign_rows" in result.output) == (1, True)
    assert world.warehouse.log == []


def test_a_run_with_nothing_to_load_reads_no_table(world: FakePlatform, loaded: Shell) -> None:
    world.warehouse.stored = None  # type: ignore[assignment]
    loaded.done("load")


def test_a_registry_of_the_last_release_has_an_id_that_stays() -> None:
    old = TableRegistry({"d.b": "u2"}, {"d.c": "u3"})
    assert old.staging_id == "u2"
    assert old.announce(TableReference("d", "a"), "u1").staging_id == "u2"
    assert TableRegistry().announce(TableReference("d", "a"), "u1").staging_id == "u1"
