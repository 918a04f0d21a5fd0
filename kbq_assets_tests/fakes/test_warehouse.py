"""The fake warehouse keeps the contract, and fails on request."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from kbq_assets.core.errors import JobAlreadyExists, NotFound, Unavailable, UnknownOutcome
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import JobStatus, Warehouse
from kbq_assets_tests.contracts.errors_replay import (
    StatementErrorReplaysContract,
    SteppedErrorReplaysContract,
)
from kbq_assets_tests.contracts.statements import StatementsContract
from kbq_assets_tests.contracts.warehouse import (
    SCHEMA,
    TABLE,
    Stage,
    WarehouseContract,
    avro_file,
    load_job,
    records,
    stage_in,
)
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.warehouse import TRANSIENT, FakeWarehouse, Row


class Files:
    """Local files as the store the fake reads from."""

    def open_read(self, path: str) -> BinaryIO:
        try:
            return open(path, "rb")
        except FileNotFoundError as error:
            raise NotFound(path) from error


def path_of(uri: str) -> str:
    return url2pathname(urlsplit(uri).path)


class TestFakeWarehouse(StatementErrorReplaysContract, StatementsContract, WarehouseContract):
    @pytest.fixture
    def warehouse(self) -> Warehouse:
        return FakeWarehouse(Files(), path_of, keep_records=True)


class TestFakeWarehouseWithPendingJobs(StatementErrorReplaysContract, StatementsContract, WarehouseContract):
    @pytest.fixture
    def warehouse(self) -> Warehouse:
        return FakeWarehouse(Files(), path_of, auto_run=False, keep_records=True).view("p")

    def finish(self, warehouse: Warehouse, job_id: str, table: TableReference = TABLE) -> JobStatus:
        fake = warehouse._warehouse  # type: ignore[attr-defined]
        while fake.step() is not None:
            pass
        return super().finish(warehouse, job_id, table)


class TestFakeLake(SteppedErrorReplaysContract, WarehouseContract):
    @pytest.fixture
    def area(self) -> ObjectStore:
        return FaultyMemoryStore()

    @pytest.fixture
    def stage(self, area: FaultyMemoryStore) -> Stage:
        def write(name: str, data: bytes) -> str:
            area.create(name, data)
            return area.uri(name)

        return write

    @pytest.fixture
    def warehouse(self, area: FaultyMemoryStore) -> Warehouse:
        return FakeWarehouse(area, area.path_of, keep_records=True, one_transaction=False).view("p")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return stage_in(tmp_path)


@pytest.fixture
def fake() -> FakeWarehouse:
    """With `TABLE`, and jobs that run on request."""
    warehouse = FakeWarehouse(Files(), path_of, auto_run=False, keep_records=True)
    warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    return warehouse


def plan(fake: FakeWarehouse, outcome: Outcome) -> list[Call]:
    """Every call of every view ends like this; return the calls seen."""
    seen: list[Call] = []

    def fault(call: Call) -> Outcome:
        seen.append(call)
        return outcome

    fake.faults = fault
    return seen


@pytest.mark.parametrize(
    ("outcome", "raised", "inserted"),
    [
        (Outcome.OK, None, True),
        (Outcome.UNAVAILABLE, Unavailable, False),
        (Outcome.CRASH_BEFORE, Crash, False),
        (Outcome.CRASH_AFTER, Crash, True),
        (Outcome.CRASH_LATE, Crash, False),
        (Outcome.LATE, UnknownOutcome, False),
        (Outcome.LOST_REPLY, UnknownOutcome, True),
        (Outcome.OWN_RETRY, JobAlreadyExists, True),
    ],
)
def test_an_insert_ends_as_planned(
    fake: FakeWarehouse, stage: Stage, outcome: Outcome, raised: type[BaseException] | None, inserted: bool
) -> None:
    seen = plan(fake, outcome)
    job = load_job("j", stage("a", avro_file(records([0]))))
    if raised is None:
        fake.view("loader").insert_job(job)
    else:
        with pytest.raises(raised):
            fake.view("loader").insert_job(job)
    assert seen == [Call("loader", "insert_job", "j", True)]
    assert (fake.get_job("j", "local", "local") is not None) == inserted
    assert len(fake.late) == (outcome in (Outcome.LATE, Outcome.CRASH_LATE))


def test_a_late_insert_arrives_on_request_and_fails_on_a_burned_id(fake: FakeWarehouse, stage: Stage) -> None:
    plan(fake, Outcome.LATE)
    uri = stage("a", avro_file(records([0])))
    for job_id in ("early", "burned"):
        with pytest.raises(UnknownOutcome):
            fake.view("loader").insert_job(load_job(job_id, uri))
    assert fake.deliver_late() is None
    assert fake.pending == ("early",)
    fake.burn_job("burned", "local", "local")
    assert isinstance(fake.deliver_late(), JobAlreadyExists)
    assert fake.late == []


def test_a_job_runs_on_request_on_the_files_of_that_moment(
    fake: FakeWarehouse, stage: Stage, tmp_path: Path
) -> None:
    fake.insert_job(load_job("a", stage("a", avro_file(records([0, 1])))))
    fake.insert_job(load_job("b", stage("b", avro_file(records([2])))))
    (tmp_path / "b").unlink()
    assert fake.rows(TABLE) == ()
    assert fake.step() == "a"
    assert fake.rows(TABLE) == (Row(0, "t", 0, 0), Row(0, "t", 0, 1))
    assert [r["id"] for r in fake.records(TABLE)] == [0, 1]
    failed = fake.run_pending("b")
    assert failed.error is not None
    assert failed.error.reason == "notFound"
    assert fake.step() is None


def test_a_job_ends_with_the_error_it_is_given(fake: FakeWarehouse, stage: Stage) -> None:
    uri = stage("a", avro_file(records([0])))
    fake.insert_job(load_job("a", uri))
    assert fake.run_pending("a", TRANSIENT).error == TRANSIENT
    fake.job_errors = lambda job: TRANSIENT
    fake.insert_job(load_job("b", uri))
    assert fake.run_pending("b").error == TRANSIENT
    assert fake.log == []


def test_a_bad_path_fails_for_good_in_jobs_and_probes(fake: FakeWarehouse, stage: Stage) -> None:
    uri = stage("a", avro_file(records([0])))
    fake.bad_paths.add(path_of(uri))
    fake.insert_job(load_job("j", uri))
    error = fake.run_pending("j").error
    assert error == fake.probe(load_job("j", uri))
    assert error is not None
    assert (error.reason, error.transient) == ("invalid", False)


def test_duplicates_and_the_order_of_visibility_are_seen(fake: FakeWarehouse, stage: Stage) -> None:
    for job_id, offsets in (("a", [3, 4]), ("b", [1]), ("c", [4])):
        fake.insert_job(load_job(job_id, stage(job_id, avro_file(records(offsets)))))
        fake.run_pending(job_id)
    assert [row.offset for _, row in fake.log] == [3, 4, 1, 4]
    assert fake.duplicates() == {(TABLE, Row(0, "t", 0, 4)): 2}


def test_a_job_of_another_location_is_another_job(fake: FakeWarehouse) -> None:
    fake.insert_job(load_job("j", location="EU"))
    assert fake.get_job("j", "local", "local") is None
    assert fake.get_job("j", "local", "EU") is not None


def test_a_read_without_an_answer_is_unavailable(fake: FakeWarehouse) -> None:
    plan(fake, Outcome.LOST_REPLY)
    with pytest.raises(Unavailable):
        fake.view("p").columns(TableReference("a", "b"))
