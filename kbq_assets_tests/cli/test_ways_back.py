"""Every state that waits for someone is seen by `kbq status` and `kbq check`, is explained in docs/operations.md, names
what to do, and has a documented way back: from the state to green, with every record accounted for.

To add a state, add its reason to core/protocol/waits.py, and a `State` with the ways that the documentation gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from kbq_assets.core.loading.column_limits import MAX_COLUMNS
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import (
    TABLE_REGISTRY,
    TOPIC_REGISTRY,
    TableReference,
    commit_path,
    table_state_path,
)
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import ParkReason, StopReason
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.warehouse import JobError, LoadJob
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.kafka import FakePartition
from kbq_assets_tests.fakes.platform import GOOD, POISON, SCHEMAS, TOPIC, UNKNOWN_SCHEMA, FakePlatform
from kbq_assets_tests.fakes.statements import Failure
from kbq_assets_tests.fixtures.tiny_manifests import NO_TAIL, tiny_manifests

TP = TopicPartition(TOPIC, 0)
ORDERS = TableReference("shop", "orders")
COMMIT, ORDERS_STATE = commit_path(TOPIC, 0), table_state_path(ORDERS)
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
#: An operator's command, or a fix outside of KBQ.
Step: TypeAlias = str | Callable[[FakePlatform], None]


@dataclasses.dataclass(frozen=True)
class State:
    """A state and its ways back. ``documented`` is a text in docs/operations.md, by default its reason's row."""

    reason: str
    reach: Callable[[FakePlatform, Shell], None]
    ways: tuple[tuple[Step, ...], ...]
    documented: str = ""
    #: what `kbq reconcile` says afterwards
    accounted: str = "yes"

    def __str__(self) -> str:
        return self.reason


# Partitions and topics ------------------------------------------------------------------------------------------------


def source(options: str) -> Callable[[FakePlatform], None]:
    """Rewrites the source list."""

    def rewrite(world: FakePlatform) -> None:
        world.source_topics.write_text(f"{TOPIC} dataset=shop {options}\n")

    return rewrite


def unfit_name(world: FakePlatform, run: Shell) -> None:
    source(f"table={'x' * 220}")(world)
    world.produce(3)
    run("extract")


def wrong_entry(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.produce(3)
    run.done("extract")
    source("tabel=orders")(world)
    assert run("extract").exit_code == run("load").exit_code == 1


def damaged_commit(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.saved = world.store.objects[COMMIT]  # type: ignore[attr-defined]
    world.store.swap(COMMIT, b"{", world.store.get(COMMIT).generation)


def missing_commit(world: FakePlatform, run: Shell) -> None:
    damaged_commit(world, run)
    world.store.delete(COMMIT)


def restore_commit(world: FakePlatform) -> None:
    world.store.objects[COMMIT] = world.saved  # type: ignore[attr-defined]


def damaged_manifest(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    with tiny_manifests(NO_TAIL):
        world.produce(2)
        run.done("extract")
    [manifest] = [path for path in world.store.objects if path.startswith("manifests/")]
    world.saved = manifest, world.store.objects[manifest]  # type: ignore[attr-defined]
    found = world.store.get(manifest)
    world.store.swap(manifest, found.data.replace(b'"rows":', b'"sows":'), found.generation)


def missing_manifest(world: FakePlatform, run: Shell) -> None:
    damaged_manifest(world, run)
    world.store.delete(world.saved[0])  # type: ignore[attr-defined]


def restore_manifest(world: FakePlatform) -> None:
    path, found = world.saved  # type: ignore[attr-defined]
    world.store.objects[path] = found


def not_bootstrapped(world: FakePlatform, run: Shell) -> None:
    world.produce(5)
    world.store.create(f"done/{TOPIC}.0.shop.orders.0.2.done", b"")


def three_loaded(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    run.done("extract")
    run.done("load")


def recreated(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.kafka.recreate_topic(TOPIC)
    world.produce(2)


def no_offsets(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.kafka.leaderless = {TP}


def with_leader(world: FakePlatform) -> None:
    world.kafka.leaderless = set()


def topic_gone(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.saved = world.kafka.topics_by_name.pop(TOPIC)  # type: ignore[attr-defined]


def allowed_again(world: FakePlatform) -> None:
    world.kafka.topics_by_name[TOPIC] = world.saved  # type: ignore[attr-defined]


def not_listed(world: FakePlatform) -> None:
    world.source_topics.write_text("other.* dataset=shop\n")


def partition_gone(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    del world.kafka.topics_by_name[TOPIC].partitions[1]


def partition_back(world: FakePlatform) -> None:
    world.kafka.topics_by_name[TOPIC].partitions.append(FakePartition())


def truncated(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.kafka.truncate(TP, 1)


def lost_to_retention(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.produce(5)
    world.kafka.delete_before(TP, 6)


def bad_value(value: bytes, options: str = "table=orders") -> Callable[[FakePlatform, Shell], None]:
    def reach(world: FakePlatform, run: Shell) -> None:
        source(options)(world)
        world.produce(1)
        world.produce(3, value=value)
        run("extract")

    return reach


def table_truncated(world: FakePlatform, run: Shell) -> None:
    event = b'{"op": "t", "source": {"connector": "postgresql"}}'
    bad_value(event, "table=orders format=debezium")(world, run)


def schema_appears(world: FakePlatform) -> None:
    world.registry.schemas[99] = world.registry.schemas[1]
    world.store.time_ms += 3_600_000


def schema_without_columns(world: FakePlatform, run: Shell) -> None:
    world.registry.schemas[99] = '"string"'
    bad_value(UNKNOWN_SCHEMA)(world, run)


def misspelt_field(world: FakePlatform, run: Shell) -> None:
    world.registry.schemas[3] = SCHEMAS[1].replace('"x"', '"ordered_at"')
    world.registry.subjects[f"{TOPIC}-value"] = {1: 1, 2: 3}
    source("table=orders event_date=orderd_at")(world)
    world.produce(3)
    assert "did you mean ordered_at?" in run("extract").output


def schema_changed(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.registry.schemas[1] = SCHEMAS[1].replace('"x"', '"y"')
    world.produce(2)
    run("extract")


def schema_is_back(world: FakePlatform) -> None:
    world.registry.schemas[1] = SCHEMAS[1]


def damaged_batch(reason: str) -> Callable[[FakePlatform, Shell], None]:
    def reach(world: FakePlatform, run: Shell) -> None:
        world.produce(9)
        world.kafka.damage(TP, 5, 8, reason)
        run("extract")

    return reach


def batch_is_whole_again(world: FakePlatform) -> None:
    world.kafka.repair(TP)


def log_changed(world: FakePlatform, run: Shell) -> None:
    world.produce(2)
    world.kafka.gap(TP, 2)
    run.done("extract")
    run.done("load")
    world.kafka.truncate(TP, 2)
    world.produce(4)
    run("extract")


def defect(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    world.registry.defect = ValueError("a defect")
    run("extract")


def fixed(world: FakePlatform) -> None:
    world.registry.defect = None
    world.store.time_ms += 3_600_000


def dying_tasks(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    world.kills = lambda unit: unit.range.topic_partition == TP
    for _ in range(3):
        assert run("extract").exit_code == 75
    run("extract")


def enough_memory(world: FakePlatform) -> None:
    world.kills = lambda unit: False
    world.store.time_ms += 3_600_000


RESUME, AS_ERRORS = f"resume --topic {TOPIC}", f"resume --topic {TOPIC} --partition 0 --as-errors"
RESET = f"reset --topic {TOPIC}"
RESET_PARTITION, ACCEPT_GAP = f"{RESET} --partition 0", f"accept-gap --topic {TOPIC} --partition 0"

STOPS = [
    State(StopReason.WRONG_ENTRY, wrong_entry, ((source("table=orders"),),)),
    State(StopReason.UNFIT_NAME, unfit_name, ((source("table=orders"),),)),
    State(StopReason.COMMIT_UNREADABLE, damaged_commit, ((restore_commit,),)),
    State(StopReason.COMMIT_MISSING, missing_commit, ((restore_commit,),)),
    State(StopReason.COMMIT_UNREADABLE, missing_manifest, ((restore_manifest,),), "A *manifest*"),
    State(StopReason.COMMIT_UNREADABLE, damaged_manifest, ((restore_manifest,),), "A *manifest*"),
    State(
        StopReason.NOT_BOOTSTRAPPED, not_bootstrapped, ((f"bootstrap --topic {TOPIC} --from-done-files",),)
    ),
    State(StopReason.RECREATED, recreated, ((RESET,),)),
    State(StopReason.NO_OFFSETS, no_offsets, ((with_leader,),)),
    State(StopReason.TOPIC_GONE, topic_gone, ((allowed_again,), (not_listed,))),
    State(StopReason.PARTITION_GONE, partition_gone, ((partition_back,), (RESET,))),
    State(StopReason.TRUNCATED, truncated, ((RESET_PARTITION,),)),
    State(
        StopReason.RETENTION_LOSS,
        lost_to_retention,
        ((ACCEPT_GAP,), (RESET_PARTITION,), (source("table=orders on_retention_loss=record"),)),
    ),
    State(
        StopReason.UNKNOWN_SCHEMA,
        bad_value(UNKNOWN_SCHEMA),
        ((schema_appears,), (schema_appears, RESUME), (AS_ERRORS,)),
    ),
    State(
        StopReason.UNSTAGEABLE_SCHEMA,
        schema_without_columns,
        ((schema_appears, f"{RESUME} --new-schemas", RESUME), (AS_ERRORS,)),
    ),
    State(
        StopReason.UNSTAGEABLE_SCHEMA,
        misspelt_field,
        ((source("table=orders event_date=ordered_at"), RESUME), (AS_ERRORS,)),
    ),
    State(
        StopReason.SCHEMA_CHANGED,
        schema_changed,
        ((schema_is_back, RESUME), (f"{RESUME} --new-schemas",)),
    ),
    State(
        StopReason.ERROR_SHARE,
        bad_value(POISON, "table=orders error_share=0.1 error_share_records=1 max_error_share=1"),
        ((source("table=orders"), RESUME), (AS_ERRORS,)),
    ),
    State(
        StopReason.BAD_RECORD,
        bad_value(POISON, "table=orders errors=fail"),
        ((source("table=orders errors=skip"), RESUME), (AS_ERRORS,)),
    ),
    State(StopReason.TABLE_TRUNCATED, table_truncated, ((AS_ERRORS,),)),
    State(
        StopReason.DAMAGED_BATCH,
        damaged_batch("damaged_batch"),
        ((batch_is_whole_again, RESUME), (ACCEPT_GAP,)),
    ),
    State(
        StopReason.OVERSIZED_BATCH,
        damaged_batch("oversized_batch"),
        ((batch_is_whole_again, RESUME), (ACCEPT_GAP,)),
    ),
    State(StopReason.LOG_CHANGED, log_changed, ((RESET_PARTITION,),)),
    State(StopReason.TASK_DIED, dying_tasks, ((enough_memory,), (enough_memory, RESUME))),
    State(StopReason.FAILED, defect, ((fixed,), (fixed, RESUME))),
]

# Tables ---------------------------------------------------------------------------------------------------------------


def staged(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    run.done("extract")


def incompatible(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    schema = SCHEMAS[1].replace('"long"', '"string"')
    world.registry.schemas[99] = schema
    world.produce(value=UNKNOWN_SCHEMA + b"x")
    run.done("extract")
    run("load")


def full_table(world: FakePlatform, run: Shell) -> None:
    """A table with as many columns as it holds, and a record of a schema with one more."""
    three_loaded(world, run)
    table = world.warehouse.stored[ORDERS]
    filled = (Column(f"old{n}", "STRING") for n in range(MAX_COLUMNS - len(table.columns)))
    table.columns = (*table.columns, *filled)
    world.registry.schemas[99] = SCHEMAS[1].replace("}]}", '},{"name":"new","type":"long"}]}')
    world.produce(value=UNKNOWN_SCHEMA + b"\x02")
    run.done("extract")
    assert "with new, the table would have 10001 columns" in run("load").output


def without_old_columns(world: FakePlatform) -> None:
    table = world.warehouse.stored[ORDERS]
    table.columns = tuple(column for column in table.columns if column.name != "old7")


def refused_table(world: FakePlatform, run: Shell) -> None:
    """The warehouse refuses to create the table, whoever asks."""
    world.warehouse.refused_tables = {ORDERS: "Description is too long"}
    staged(world, run)
    run("load")


def accepted_table(world: FakePlatform) -> None:
    world.warehouse.refused_tables = {}


def with_variants(world: FakePlatform) -> None:
    source("table=orders on_incompatible=variant_column")(world)


def failing_jobs(world: FakePlatform, run: Shell) -> None:
    staged(world, run)
    world.warehouse.job_errors = lambda job: JobError("invalid", "no", transient=False)
    run("load")


def working_jobs(world: FakePlatform) -> None:
    world.warehouse.job_errors = None


def an_hour_later(world: FakePlatform) -> None:
    world.store.time_ms += 3_600_000


def without_files(world: FakePlatform, run: Shell) -> None:
    staged(world, run)
    _take_staged_files(world)
    run("load")


def _take_staged_files(world: FakePlatform) -> None:
    paths = [entry.path for entry in world.store.list("staging/")]
    world.saved = {path: world.store.objects[path] for path in paths}  # type: ignore[attr-defined]
    for path in paths:
        world.store.delete(path)


def restore_files(world: FakePlatform) -> None:
    world.store.objects.update(world.saved)  # type: ignore[attr-defined]


def restage_files(world: FakePlatform) -> None:
    for path in world.saved:  # type: ignore[attr-defined]
        Shell(world).done("restage", path, "--yes")


def damaged_files(world: FakePlatform, run: Shell) -> None:
    staged(world, run)
    _take_staged_files(world)
    for path, stored in world.saved.items():  # type: ignore[attr-defined]
        world.store.create(path, stored.data[:-1] + bytes([stored.data[-1] ^ 1]))
    run("load")


def foreign_job(world: FakePlatform, run: Shell) -> None:
    """Someone else used the id of the next job."""
    three_loaded(world, run)
    current = state.read(world.store, TableState, ORDERS_STATE).value
    used = f"kbq-{current.uuid}-{current.sequence + 1}"
    world.warehouse.insert_job(
        LoadJob(used, "local", "local", TableReference("shop", "other"), ("memory:///x",), "")
    )
    world.produce(1)
    run.done("extract")
    run("load")


def old_load_job(world: FakePlatform, run: Shell) -> None:
    staged(world, run)
    world.warehouse.auto_run = False
    run("load")
    world.warehouse.jobs.clear()
    world.warehouse.auto_run = True
    world.store.time_ms += 31 * 86_400_000
    run("load")


GIVE_UP = (f"{RESET} --give-up-pending", "resume --table shop.orders")


def held(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    run.done("park", "--table", "shop.orders", "--yes")


def ordered(world: FakePlatform, run: Shell) -> None:
    source("table=orders order=offset")(world)
    three_loaded(world, run)


def failed_batch(world: FakePlatform, run: Shell) -> None:
    ordered(world, run)
    failing_jobs(world, run)


def red_gate(world: FakePlatform, run: Shell) -> None:
    source("table=orders order=offset gate=sql gate_sql=SELECT")(world)
    world.warehouse.statements.bad_rows = lambda sql: ["id=7"]
    world.produce(3)
    run.done("extract")
    run("load")


def green_gate(world: FakePlatform) -> None:
    world.warehouse.statements.bad_rows = lambda sql: []


def waits_for_person(world: FakePlatform, run: Shell) -> None:
    source("table=orders order=offset gate=person")(world)
    world.produce(3)
    run.done("extract")
    run("load")
    source("table=orders order=offset")(world)  # the next batch needs no operator


def waits_for_marker(world: FakePlatform, run: Shell) -> None:
    source("table=orders order=offset hold_until=history")(world)
    world.produce(3)
    run.done("extract")
    run("load")


def with_marker(world: FakePlatform) -> None:
    world.store.create("markers/history", b"")


def ordered_and_held(world: FakePlatform, run: Shell) -> None:
    ordered(world, run)
    run.done("order", "hold", "shop.orders", "--yes")
    world.produce(1)
    run.done("extract")
    run("load")


def fresh_staging(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.saved = dict(world.store.objects)  # type: ignore[attr-defined]
    world.store.objects.clear()
    run.done("extract")
    run("load")


def staging_set_back(world: FakePlatform) -> None:
    world.store.objects = dict(world.saved)  # type: ignore[attr-defined]


def without_table(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.saved = world.warehouse.stored.pop(ORDERS)  # type: ignore[attr-defined]
    world.produce(1)
    run.done("extract")
    run("load")


def restore_table(world: FakePlatform) -> None:
    world.warehouse.stored[ORDERS] = world.saved  # type: ignore[attr-defined]


UPSERT = source("table=orders load=upsert key=_kafka_key keys=true")


def failed_statement(world: FakePlatform, run: Shell) -> None:
    UPSERT(world)
    staged(world, run)
    no = JobError("invalidQuery", "no", transient=False)
    world.warehouse.statements.errors = lambda job: (no, Failure.BEFORE)
    run("load")


def key_without_column(world: FakePlatform, run: Shell) -> None:
    """A key that no record has."""
    source("table=orders load=upsert key=misspelled")(world)
    staged(world, run)
    run("load")


def working_statements(world: FakePlatform) -> None:
    world.warehouse.statements.errors = None


def ledger_gone(world: FakePlatform, run: Shell) -> None:
    UPSERT(world)
    three_loaded(world, run)
    world.warehouse.statements.ledgers.clear()
    world.produce(1)
    run.done("extract")
    run("load")


LIMITED = "table=orders load=upsert key=_kafka_key keys=true bytes_per_day="


def too_expensive(world: FakePlatform, run: Shell) -> None:
    """A second statement on a day whose limit allows one."""
    source(f"{LIMITED}150")(world)
    world.warehouse.statements.price = 100
    three_loaded(world, run)
    world.produce(1)
    run.done("extract")
    run("load")


HOURLY = "table=orders order=hour complete_after_seconds=1"


def late_rows(world: FakePlatform, run: Shell) -> None:
    """A record of an hour that is complete."""
    source(f"{HOURLY} late_rows=park")(world)
    now = world.store.time_ms
    for times in ((now - 7_200_000, now), (now,), (now - 7_200_000,)):
        for at in times:
            world.kafka.produce(TP, GOOD, timestamp=at)
        run.done("extract")
        run("load")


def a_day_later(world: FakePlatform) -> None:
    world.store.time_ms += 86_400_000


TABLES = [
    State(
        ParkReason.BYTES_LIMIT,
        too_expensive,
        ((a_day_later,), (source(f"{LIMITED}200"), "resume --table shop.orders")),
    ),
    State(
        ParkReason.STATEMENT_FAILED,
        failed_statement,
        (
            (working_statements, "resume --table shop.orders"),
            (working_statements, "order retry shop.orders"),
            (working_statements, "order skip shop.orders --batch 1 --reason by-hand"),
        ),
    ),
    State(
        ParkReason.WRONG_OPTIONS,
        key_without_column,
        (
            (source("table=orders"), "resume --table shop.orders"),
            (source("table=orders"), an_hour_later),
            (UPSERT, f"{RESET} --give-up-pending", "resume --table shop.orders"),
        ),
    ),
    State(
        ParkReason.WRONG_OPTIONS,
        refused_table,
        ((accepted_table, an_hour_later), (accepted_table, "resume --table shop.orders")),
        "the warehouse refuses to create or change the table",
    ),
    State(ParkReason.LEDGER_DIFFERS, ledger_gone, (("adopt --table shop.orders",),)),
    State(
        ParkReason.INCOMPATIBLE_SCHEMA,
        incompatible,
        ((with_variants, an_hour_later), (with_variants, "resume --table shop.orders")),
    ),
    State(
        ParkReason.INCOMPATIBLE_SCHEMA,
        full_table,
        (
            (without_old_columns, an_hour_later),
            (without_old_columns, "resume --table shop.orders"),
            (source("table=orders2"), *GIVE_UP),
        ),
        "more than 10,000 columns",
    ),
    State(
        ParkReason.LOAD_FAILED,
        failing_jobs,
        ((working_jobs, an_hour_later), (working_jobs, "resume --table shop.orders")),
    ),
    State(
        ParkReason.MISSING_FILES,
        without_files,
        (
            (restore_files, "resume --table shop.orders"),
            (restage_files, "resume --table shop.orders"),
            GIVE_UP,
        ),
    ),
    State(
        ParkReason.DAMAGED_FILES,
        damaged_files,
        (
            (restore_files, "resume --table shop.orders"),
            (restage_files, "resume --table shop.orders"),
            GIVE_UP,
        ),
    ),
    State(ParkReason.FOREIGN_JOB, foreign_job, (("resume --table shop.orders",),)),
    State(ParkReason.OLD_JOB, old_load_job, (("resume --table shop.orders",),)),
    State(ParkReason.FOREIGN_ROWS, fresh_staging, ((staging_set_back,),)),
    State(ParkReason.TABLE_GONE, without_table, ((restore_table, "resume --table shop.orders"),)),
    State(
        ParkReason.BATCH_FAILED,
        failed_batch,
        (
            (working_jobs, an_hour_later),
            (working_jobs, "order retry shop.orders"),
            (working_jobs, "order skip shop.orders --batch 2 --reason by-hand"),
        ),
    ),
    State(
        ParkReason.GATE_RED,
        red_gate,
        (
            (green_gate, an_hour_later),
            (green_gate, "resume --table shop.orders"),
            ("order continue shop.orders",),
        ),
    ),
    State(
        ParkReason.LATE_ROWS,
        late_rows,
        (("order continue shop.orders",), (source(HOURLY), an_hour_later)),
    ),
    State(ParkReason.GATE_WAITS, waits_for_person, (("order continue shop.orders",),)),
    State(
        ParkReason.WAITS_FOR_MARKER,
        waits_for_marker,
        ((with_marker, an_hour_later), ("order release shop.orders",)),
    ),
    State(ParkReason.HELD, ordered_and_held, (("order release shop.orders",),)),
    State(ParkReason.OPERATOR, held, (("resume --table shop.orders",),)),
]

# Objects that are lost or damaged -------------------------------------------------------------------------------------


def held_with_backlog(world: FakePlatform, run: Shell) -> None:
    held(world, run)
    world.produce(2)
    for _ in range(2):
        run.done("extract")
    run.done("resume", "--table", "shop.orders", "--yes")


def with_work(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.produce(2)
    run.done("extract")


def damage(world: FakePlatform, path: str) -> None:
    world.store.swap(path, b"{", world.store.get(path).generation)


def lose(world: FakePlatform, path: str) -> None:
    world.store.delete(path)


#: Prefix of an object, how it is reached, whether it stops everything, and the ways back besides its restoration.
OBJECTS: list[tuple[str, Callable[[FakePlatform, Shell], None], bool, tuple[tuple[str, ...], ...]]] = [
    (ORDERS_STATE, with_work, False, ()),
    ("backlog/", held_with_backlog, False, ((f"{RESET} --give-up-pending",),)),
    (TOPIC_REGISTRY, with_work, True, ()),
    (TABLE_REGISTRY, with_work, True, ()),
]
RESTORED = [
    pytest.param(*found[:3], harm, way, id=f"{harm.__name__} {found[0]}{n or ''}")
    for found in OBJECTS
    for harm in (damage, lose)
    for n, way in enumerate(((), *found[3]))
    if (found[0], harm) != ("backlog/", lose)  # a chunk that is gone is loaded
]


@pytest.mark.parametrize(("prefix", "reach", "stops_all", "harm", "way"), RESTORED)
def test_an_object_that_is_lost_or_damaged_is_named_and_restoring_it_leads_back_to_green(
    world: FakePlatform,
    run: Shell,
    prefix: str,
    reach: Callable[[FakePlatform, Shell], None],
    stops_all: bool,
    harm: Callable[[FakePlatform, str], None],
    way: tuple[str, ...],
) -> None:
    reach(world, run)
    [path] = [entry.path for entry in world.store.list(prefix)]
    stored = world.store.objects[path]
    harm(world, path)
    run("load")
    status, check = run("status"), run("check")
    assert (status.exit_code, check.exit_code) == (int(stops_all), 1)
    for shown in (status.output, check.output):
        assert f"{path} is " in shown or f"{path} cannot be read" in shown
        assert "next: restore its previous generation" in shown.split(path, 1)[1]
    for command in way:
        run.done(*command.split(), "--yes")
    if not way:
        world.store.objects[path] = stored
    assert_green(run)


# What a person wrote --------------------------------------------------------------------------------------------------

FEW_ERRORS = "table=orders error_share=1 error_share_records=1 blocking=error_share_is_low"


def blocked(world: FakePlatform, run: Shell) -> None:
    source(f"{FEW_ERRORS} max_error_share=0.5")(world)
    world.produce(3, value=POISON)
    run("extract")
    assert run("load").exit_code == 1


def misspelt(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    source("tabel=orders")(world)


def unreadable(world: FakePlatform, run: Shell) -> None:
    three_loaded(world, run)
    world.source_topics.unlink()


def catalog(text: str) -> Callable[[FakePlatform, Shell], None]:
    """A catalog in the place of the list, whose entry for the topic reads so."""

    def reach(world: FakePlatform, run: Shell) -> None:
        three_loaded(world, run)
        world.source_topics.unlink()
        folder = world.source_topics / "shop" / "sales" / "orders" / "prod"
        folder.mkdir(parents=True)
        (world.source_topics / "catalog.yaml").write_text("names: {dataset: '{company}'}")
        (folder / "topic.yaml").write_text(text)

    return reach


def good_entry(world: FakePlatform) -> None:
    [entry] = world.source_topics.rglob("topic.yaml")
    entry.write_text(
        f"consumers: [archiver]\nownership: {{team: sales}}\nkafka: {{name: {TOPIC}, partitions: 2}}\n"
    )


@pytest.mark.parametrize(
    ("reach", "named", "correct"),
    [
        (catalog("kafka: ["), "topic.yaml:2: not YAML", good_entry),
        (catalog("consumer: [archiver]"), "unknown key 'consumer'", good_entry),
        (blocked, "error_share_is_low", source(f"{FEW_ERRORS} max_error_share=1")),
        (misspelt, "unknown option 'tabel'", source("table=orders")),
        (unreadable, "the source list", source("table=orders")),
    ],
)
def test_what_a_person_wrote_is_named_and_correcting_it_leads_back_to_green(
    world: FakePlatform,
    run: Shell,
    reach: Callable[[FakePlatform, Shell], None],
    named: str,
    correct: Callable[[FakePlatform], None],
) -> None:
    reach(world, run)
    for shown in (run("status").output, run("check").output):
        assert named in shown
        assert "next: " in shown.split(named, 1)[1]
    correct(world)
    assert_green(run)


def test_a_staging_area_out_of_reach_is_named_and_nothing_else_waits_for_it(
    world: FakePlatform, run: Shell
) -> None:
    with_work(world, run)
    store = world.store
    store.faults = lambda call: Outcome.UNAVAILABLE
    world.store = store.view("kbq")  # type: ignore[assignment]
    for command in ("extract", "load", "clean", "status", "check", "reconcile"):
        shown = run(command)
        assert shown.exit_code == 75
        assert "next: try again" in shown.output
    world.store = store
    assert_green(run)


STATES = [*STOPS, *TABLES]
WAYS = [pytest.param(found, way, id=f"{found}-{n}") for found in STATES for n, way in enumerate(found.ways)]


def test_every_reason_has_a_state_here() -> None:
    assert {found.reason for found in STATES} == {*StopReason, *ParkReason}


@pytest.mark.parametrize("found", STATES, ids=str)
def test_status_and_check_see_it_name_what_to_do_and_the_documentation_explains_it(
    world: FakePlatform, run: Shell, found: State
) -> None:
    found.reach(world, run)
    status, check = run.done("status"), run("check")
    assert check.exit_code == 1
    for shown in (status, check.stdout):
        assert f"{found.reason}: " in shown
        assert "next: " in shown.split(f"{found.reason}: ", 1)[1]
    assert (found.documented or f"| `{found.reason}` |") in OPERATIONS.read_text(encoding="utf-8")


@pytest.mark.parametrize(("found", "way"), WAYS)
def test_the_documented_way_leads_back_to_green(
    world: FakePlatform, run: Shell, found: State, way: tuple[Step, ...]
) -> None:
    found.reach(world, run)
    for step in way:
        if isinstance(step, str):
            run.done(*step.split(), "--yes")
        else:
            step(world)
    assert_green(run, found.accounted)


def assert_green(run: Shell, accounted: str = "yes") -> None:
    run.done("extract")
    run.done("load")
    green = run("check")
    assert green.exit_code == 0, green.output
    account = run("reconcile")
    assert f"every record accounted for: {accounted}" in account.stdout, account.output
    assert account.exit_code == (0 if accounted == "yes" else 1)
