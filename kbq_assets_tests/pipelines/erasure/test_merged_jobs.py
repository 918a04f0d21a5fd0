"""An erasure beside load jobs that read copies of many small files (PROTOCOL L15): no copy keeps the person, and no row
is lost or doubled, whichever process dies or comes between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import fastavro
import pytest

from kbq_assets.core.erasure.selection import PersonRecords
from kbq_assets.core.errors import KbqError, Unavailable
from kbq_assets.core.loading.table_state import JobInFlight, TableState
from kbq_assets.core.protocol.names import STAGING, TableReference, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.definitions import Parts
from kbq_assets.pipelines.erasure import topic
from kbq_assets.pipelines.erasure.topic import WaitingFile, _unloaded
from kbq_assets.pipelines.loading import loader
from kbq_assets.pipelines.loading.restaging import is_copy
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.cli.test_erase import CANARY, named
from kbq_assets_tests.cli.test_erase_warehouses import TwoFakes
from kbq_assets_tests.cli.test_warehouses import BOTH
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.platform import SOURCES, TOPIC, FakePlatform
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.warehouse import FakeWarehouse

ORDERS = TableReference("shop", "orders")
BY_KEY = PersonRecords(frozenset({CANARY.encode()}))
BY_COLUMN = PersonRecords(columns=(("n", CANARY),))
#: The canary's record is 1:0.
OTHERS_ROWS = [(0, 0), (0, 1), (1, 1)]


@pytest.fixture(autouse=True)
def _two_files_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "MERGE_FILES", 2)


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """Four files with one record each wait, of two partitions. A process that waits lets another one load."""
    return waiting(FakePlatform(tmp_path, keep_records=True, sources=SOURCES))


def waiting(made: FakePlatform) -> FakePlatform:
    for partition, key in ((0, "bert"), (1, CANARY), (0, "bert"), (1, "bert")):
        made.kafka.produce(TopicPartition(TOPIC, partition), named(key), key=key.encode())
        made.reopened().extractor.extract()
    made.warehouse.auto_run = False
    return made


def with_faults(world: FakePlatform, faults: Callable[[Call], Outcome]) -> Parts:
    """A process whose calls may fail."""
    world.store.faults = world.warehouse.faults = faults
    store, warehouse = world.store.view("loader"), world.warehouse.view("loader")
    return world.reopened(store=lambda: store, warehouse=lambda: warehouse)


def load_from(world: FakePlatform, warehouse: str) -> None:
    parts = world.reopened()
    (parts.for_warehouse(warehouse) if warehouse else parts).loader.load()


def load(world: FakePlatform) -> None:
    """Other loaders, one per warehouse: every job runs, and is recorded."""
    for name, warehouse in warehouses(world).items():
        warehouse.auto_run = True
        while warehouse.step():
            pass
        with suppress(Unavailable):
            load_from(world, name)


def begin(world: FakePlatform) -> JobInFlight:
    """A loader that dies with its job on the way."""
    with suppress(Crash):
        with_faults(world, Script("insert_job", outcome=Outcome.CRASH_BEFORE)).loader.load()
    found = state.read(world.store, TableState, table_state_path(ORDERS)).value.in_flight
    assert found is not None and found.merged
    assert CANARY in contents(world, [copy.file.path for copy in found.merged])
    return found


class WorkingClock(FakeClock):
    """While a process sleeps, others work."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work

    def sleep(self, seconds: float) -> None:
        """Move on, and let others work."""
        super().sleep(seconds)
        self._work()


def erase(world: FakePlatform, chosen: PersonRecords = BY_KEY) -> None:
    """Begin the erasure of the canary, or continue it. While it waits, another loader works."""
    parts = world.reopened(clock=WorkingClock(lambda: load(world)))
    for each in parts.erasures.all():
        parts.erasures.resume(each.number)
        return
    parts.erasures.propose(TOPIC, chosen)[1].apply()


def contents(world: FakePlatform, paths: Iterable[str]) -> str:
    """What container files say, decompressed by another library."""
    return repr([list(fastavro.reader(world.store.open_read(path))) for path in paths])


def is_forgotten(world: FakePlatform) -> None:
    """No file of the store and no table has a byte of the canary."""
    assert CANARY not in contents(world, [path for path in world.objects() if path.endswith(".avro")])
    for warehouse in warehouses(world).values():
        assert CANARY not in repr(warehouse.records(ORDERS))


def warehouses(world: FakePlatform) -> dict[str, FakeWarehouse]:
    lake = world.lake if isinstance(world, TwoFakes) else None
    return {"": world.warehouse} | ({"lake": lake} if lake else {})


def is_whole(world: FakePlatform) -> None:
    """After a last load: everybody else's rows once, every record accounted for, and nothing left over."""
    load(world)
    world.reopened().extractor.extract()
    clean(world.store)
    is_forgotten(world)
    for warehouse in warehouses(world).values():
        rows = sorted((row.partition, row.offset) for row in warehouse.rows(ORDERS))
        assert rows == OTHERS_ROWS
    reconciler = world.reopened().reconciler
    assert (reconciler.counts().findings, reconciler.reconcile().findings) == ((), ())
    assert list(world.store.list(STAGING)) == []


def test_an_erasure_waits_for_a_job_that_reads_copies(world: FakePlatform) -> None:
    world.reopened().loader.load()
    assert len(world.warehouse.pending) == 1
    assert any(is_copy(path) for path in world.objects() if path.startswith(STAGING))
    erase(world)
    is_forgotten(world)
    is_whole(world)


#: Writes of a loader: a copy, the notes before a job, the job's entry, the job, its record, the deletion of its files.
POINTS = (
    ("close", "staging/", 1),
    ("swap", "tables/shop.orders", 1),
    ("swap", "tables/shop.orders", 2),
    ("insert_job", "", 1),
    ("swap", "tables/shop.orders", 3),
    ("delete", "staging/", 1),
)


@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(map(str, point)))
def test_an_erasure_after_a_loader_died_anywhere(
    world: FakePlatform, point: tuple[str, str, int], outcome: Outcome
) -> None:
    world.warehouse.auto_run = True
    script = Script(point[0], point[1], outcome, point[2])
    with pytest.raises(Crash):
        with_faults(world, script).loader.load()
    erase(world)
    is_forgotten(world)
    for fake in (world.store, world.warehouse):
        while fake.late:
            fake.deliver_late()
    is_whole(world)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(map(str, point)))
def test_an_erasure_between_any_two_writes_of_a_loader(
    world: FakePlatform, point: tuple[str, str, int]
) -> None:
    """A loader that was late may leave a copy that nothing lists: the next clean-up deletes it (E6)."""
    world.warehouse.auto_run = True
    between = [0]

    def erased() -> None:
        erase(world)
        is_forgotten(world)
        between[0] += 1

    with suppress(KbqError):
        with_faults(world, Script(point[0], point[1], nth=point[2], before=erased)).loader.load()
    assert between == [1]
    is_whole(world)


def test_a_file_that_is_gone_while_a_job_has_its_copy(world: FakePlatform) -> None:
    """Only the copy has the person now, and the job will load it."""
    job = begin(world)
    [lost] = [file.path for file in job.files if CANARY in contents(world, [file.path])]
    world.store.delete(lost)
    plan = world.reopened().erasures.propose(TOPIC, PersonRecords(columns=(("n", CANARY),)))[1]
    assert any("may have a copy" in line for line in plan.lines)
    erase(world)
    is_forgotten(world)
    is_whole(world)


@pytest.mark.parametrize("chosen", [BY_KEY, BY_COLUMN], ids=["key", "column"])
def test_files_of_a_job_in_flight_that_a_reset_gave_up(world: FakePlatform, chosen: PersonRecords) -> None:
    """Nothing but the job lists them."""
    begin(world)
    is_by_key = chosen is BY_KEY
    planned = world.reopened().erasures.propose(TOPIC, chosen)[1] if is_by_key else None
    world.reopened().operator.reset(TOPIC, give_up_pending=True).apply()
    if planned is not None:
        with suppress(KbqError):
            planned.apply()  # no loader runs meanwhile
    erase(world, chosen)
    is_forgotten(world)
    load(world)
    is_forgotten(world)
    if is_by_key:  # positions of a former epoch may be of another log
        world.reopened().extractor.extract()
        load(world)
        is_forgotten(world)


def _listed_alone(view: LoadView, table: TableReference) -> list[WaitingFile]:
    listed = {file.path for file in view.files(table)}
    return [each for each in _unloaded(view, table) if each.is_quarantined or each.file.path in listed]


def test_files_of_jobs_in_flight_that_are_not_searched_are_noticed(
    world: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "_unloaded", _listed_alone)
    with pytest.raises(AssertionError):
        test_files_of_a_job_in_flight_that_a_reset_gave_up(world, BY_KEY)


def test_a_job_of_another_warehouse_keeps_its_copies_until_it_ends(tmp_path: Path) -> None:
    """The lake is down while the first warehouse is erased."""
    world = TwoFakes(tmp_path, BOTH)
    waiting(world)
    assert world.lake is not None
    world.lake.auto_run = False
    world.warehouse.auto_run = True
    load_from(world, "")
    load_from(world, "lake")
    assert len(world.lake.pending) == 1
    copies = [path for path in world.objects() if path.startswith(STAGING) and is_copy(path)]
    assert CANARY in contents(world, copies)
    world.down = True
    with pytest.raises(Unavailable):
        erase(world)
    assert CANARY not in repr(world.warehouse.records(ORDERS))
    assert set(copies) <= set(world.objects())
    world.down = False
    erase(world)
    is_forgotten(world)
    is_whole(world)
