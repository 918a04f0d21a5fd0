"""Batches of files end to end over fakes: order, failures, decisions, and Google's own life of a table."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from kbq_assets.core.errors import MissingState, NotFound, Refused
from kbq_assets.core.filebatches import table_batches
from kbq_assets.core.filebatches.prefix_registry import file_registry_path, file_state_path
from kbq_assets.core.protocol.archives import ArchiveRule
from kbq_assets.pipelines.filebatches import prefix_run
from kbq_assets.ports.file_loads import FileJob
from kbq_assets.ports.warehouse import JobError, JobStatus
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.pipelines.filebatches.world import FilesWorld

BAD = JobError("invalid", "bad row", transient=False)
BUSY = JobError("backendError", "try again", transient=True)
HISTORICAL, INCREMENTAL = "dataset/table/historical/2020/01/02", "dataset/table/incremental/2020/01/02"


def ordered(**settings: object) -> FilesWorld:
    world = FilesWorld(**settings)
    world.put("dataset/table/incremental/_config/ORDERME", "")
    return world


def test_the_life_of_a_table_as_googles_tool_documents_it() -> None:
    world = ordered()
    world.batch(f"{HISTORICAL}/03", "foo-data-00.csv", "foo-data-01.csv")
    world.batch(f"{HISTORICAL}/04", "foo-data-00.csv")
    world.batch(f"{INCREMENTAL}/05", "foo-data-01.csv")
    report = world.run()
    assert world.loaded == [f"{HISTORICAL}/03", f"{HISTORICAL}/04", f"{INCREMENTAL}/05"]
    assert [str(job.target) for job in world.warehouse.inserted] == [
        f"dataset.table$20200102{hour}" for hour in ("03", "04", "05")
    ]
    assert (report.tables[0].applied, report.needs_person, report.unfinished) == (3, False, False)
    assert world.run().tables[0].applied == 0
    # The next day a new incremental arrives, after the runner's exit.
    world.batch("dataset/table/incremental/2020/01/03/05")
    assert world.run().tables[0].applied == 1
    assert world.loaded[3:] == ["dataset/table/incremental/2020/01/03/05"]


def test_fifty_shuffled_batches_wait_for_the_history_marker_and_then_run_in_order() -> None:
    world = FilesWorld(order_per_table=True, start_backfill="_HISTORYDONE")
    paths = [f"dataset/table/{number:03}" for number in range(50)]
    for number, path in enumerate(random.Random(7).sample(paths, 50)):
        world.batch(path)
        if number % 9 == 0:
            world.run()
    assert world.loaded == [] and set(world.waiting().values()) == {"waits"}
    world.put("dataset/table/_HISTORYDONE", "")
    world.run()
    assert world.loaded == paths


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ("shop/bad/1", json.dumps({"destinationRegex": "(" * 5_000})),
        ("shop/bad/1", json.dumps({"destinationRegex": "a{4294967296}"})),
        ("shop/bad/²", json.dumps({"destinationRegex": r"(?P<dataset>\w+)/(?P<table>\w+)/(?P<yyyy>.+)/"})),
        ("shop/bad/1", '{"schema":' + '{"a":' * 900 + "1" + "}" * 901),
        ("shop/bad/1", json.dumps({"nullMarker": "x" * 2_000_000})),
    ],
)
def test_no_configuration_stops_the_batches_of_another_table(batch: str, text: str) -> None:
    world = FilesWorld()
    world.put("shop/bad/_config/load.json", text)
    for path in (batch, "shop/healthy/1"):
        world.batch(path)
    report = world.run()
    assert world.loaded == ["shop/healthy/1"]
    assert report.needs_person


def test_a_defect_in_one_table_stops_no_other() -> None:
    world = FilesWorld()
    for path in ("shop/bad/1", "shop/healthy/1"):
        world.batch(path)
    insert = world.warehouse.insert

    def defective(job: FileJob) -> None:
        if job.target.table == "bad":
            raise ValueError("a defect")
        insert(job)

    world.warehouse.insert = defective  # type: ignore[method-assign]
    report = world.run()
    assert world.loaded == ["shop/healthy/1"]
    [error] = [table.error for table in report.tables if table.error]
    assert "ValueError: a defect" in error and "report a bug" in error
    world.warehouse.insert = insert  # type: ignore[method-assign]
    world.run()
    assert sorted(world.loaded) == ["shop/bad/1", "shop/healthy/1"]


def test_a_failed_batch_stops_its_table_alone() -> None:
    world = FilesWorld(order_per_table=True)
    for path in ("shop/orders/1", "shop/orders/2", "shop/orders/3", "shop/customers/1"):
        world.batch(path)
    world.warehouse.bad["orders/2"] = BAD
    report = world.run()
    assert world.loaded == ["shop/customers/1", "shop/orders/1"]
    assert world.waiting() == {"shop/orders/2": "failed", "shop/orders/3": "waits"}
    assert report.needs_person
    for _ in range(3):
        world.run()
    assert len(world.loaded) == 2


@pytest.mark.parametrize("decision", ["retry", "skip"])
def test_an_operator_retries_or_skips_a_failed_batch(decision: str) -> None:
    world = FilesWorld(order_per_table=True)
    for path in ("shop/orders/1", "shop/orders/2"):
        world.batch(path)
    world.warehouse.bad["orders/1"] = BAD
    world.run()
    batches = world.batches()
    if decision == "retry":
        world.warehouse.bad.clear()
        world.put("shop/orders/1/data.csv", "patched")
        batches.retry("shop/orders", "shop/orders/1", "patched", "me")
    else:
        batches.skip("shop/orders", "shop/orders/1", "by hand", "me")
    world.run()
    expected = ["shop/orders/1", "shop/orders/2"]
    assert world.loaded == (expected if decision == "retry" else expected[1:])
    [entry] = batches.decisions("shop/orders")
    assert (entry.action, entry.batch, entry.by) == (decision, "shop/orders/1", "me")
    assert world.waiting() == {}


def test_transient_errors_are_tried_again_without_help() -> None:
    world = FilesWorld()
    world.batch("shop/orders/1")
    world.warehouse.bad["orders/1"] = BUSY
    assert world.run().unfinished
    assert world.waiting() == {"shop/orders/1": "retries"}
    world.warehouse.bad.clear()
    world.store.time_ms += table_batches.FIRST_PAUSE_MS
    world.run()
    assert world.loaded == ["shop/orders/1"]


def test_a_job_that_was_refused_is_burned_and_its_batch_fails() -> None:
    world = FilesWorld()
    world.batch("shop/orders/1")
    world.warehouse.refused = True
    world.run()
    [burned] = world.warehouse.jobs.values()
    assert burned.source_uris == () and world.waiting() == {"shop/orders/1": "failed"}


def test_a_batch_without_files_fails_and_can_be_retried() -> None:
    world = FilesWorld()
    world.put("shop/orders/1/_SUCCESS", "")
    world.run()
    assert world.waiting() == {"shop/orders/1": "failed"} and not world.warehouse.jobs
    world.put("shop/orders/1/data.csv")
    world.batches().retry("shop/orders", "shop/orders/1", "", "me")
    world.run()
    assert world.loaded == ["shop/orders/1"]


@pytest.mark.parametrize(("rule", "loads"), [("refuse", 1), ("apply", 2)])
def test_a_batch_that_is_uploaded_again_follows_its_rule(rule: str, loads: int) -> None:
    world = FilesWorld(on_reupload=rule)
    world.batch("shop/orders/1")
    world.run()
    world.batch("shop/orders/1")
    world.run()
    world.run()
    assert len(world.loaded) == loads
    assert world.waiting() == ({"shop/orders/1": "reuploaded"} if rule == "refuse" else {})
    if rule == "refuse":
        world.batches().retry("shop/orders", "shop/orders/1", "wanted", "me")
        world.run()
        assert len(world.loaded) == 2 and world.waiting() == {}


@pytest.mark.parametrize(("rule", "loaded"), [("apply", ["2", "1", "3"]), ("park", ["2", "3"])])
def test_a_late_batch_follows_its_rule(rule: str, loaded: list[str]) -> None:
    world = FilesWorld(order_per_table=True, on_late=rule)
    world.batch("shop/orders/2")
    world.run()
    world.batch("shop/orders/1")
    world.batch("shop/orders/3")
    world.run()
    assert world.loaded == [f"shop/orders/{name}" for name in loaded]
    if rule == "park":
        world.batches().skip("shop/orders", "shop/orders/1", "too late", "me")
        assert world.waiting() == {}


def test_each_ordered_batch_waits_for_its_validation() -> None:
    world = FilesWorld(order_per_table=True, wait_for_validation=True)
    for number in range(3):
        world.batch(f"shop/orders/{number}")
    for number in range(1, 4):
        world.run()
        world.run()
        assert len(world.loaded) == number
        world.put("shop/orders/_BACKFILL", "")


def test_a_bad_configuration_blocks_its_batches_until_it_is_corrected() -> None:
    world = ordered()
    world.batch(f"{INCREMENTAL}/05")
    world.batch(f"{HISTORICAL}/03")
    world.put("dataset/table/incremental/_config/load.json", '{"sourceFormats": "CSV"}')
    report = world.run()
    assert world.loaded == [f"{HISTORICAL}/03"] and report.needs_person
    [blocked] = report.tables[0].stopped
    assert "sourceFormats" in blocked.why
    world.put("dataset/table/incremental/_config/load.json", '{"sourceFormat": "AVRO"}')
    world.run()
    assert world.loaded[1:] == [f"{INCREMENTAL}/05"]
    assert world.warehouse.inserted[-1].config["sourceFormat"] == "AVRO"


def test_a_batch_without_a_table_is_named() -> None:
    world = FilesWorld()
    world.batch("lonely")
    world.batch("shop/orders/1")
    report = world.run()
    assert list(report.homeless) == ["lonely"] and report.needs_person
    assert world.loaded == ["shop/orders/1"]


def test_a_job_in_flight_is_the_same_job_whatever_changes_around_it() -> None:
    world = FilesWorld()
    world.warehouse.held = True
    world.batch("shop/orders/1")
    assert world.run().unfinished
    with pytest.raises(Refused):
        world.batches().skip("shop/orders", "shop/orders/1", "", "me")
    world.put("_config/load.json", '{"sourceFormat": "ORC"}')
    world.warehouse.jobs.clear()  # it never arrived
    world.run()
    assert [job.config["sourceFormat"] for job in world.warehouse.inserted] == ["CSV", "CSV"]
    assert len({job.job_id for job in world.warehouse.inserted}) == 1


def test_files_that_changed_before_their_job_are_entered_anew() -> None:
    world = FilesWorld()
    world.warehouse.held = True
    world.batch("shop/orders/1")
    world.run()
    world.warehouse.jobs.clear()
    world.warehouse.pending.clear()
    world.warehouse.held = False
    world.put("shop/orders/1/data.csv", "new")
    world.run()
    assert [visible.contents for visible in world.warehouse.visible] == [("new",)]
    assert len({job.job_id for job in world.warehouse.inserted}) == 2


@pytest.mark.parametrize("name", ["data.csv", "_SUCCESS"])
def test_no_job_reads_a_batch_that_was_uploaded_again_while_it_was_entered(name: str) -> None:
    world = FilesWorld()
    world.batch("shop/orders/1")

    def upload_again(call: Call) -> Outcome:
        if call.operation == "swap" and "tables/" in call.target:
            world.store.faults = None
            world.put(f"shop/orders/1/{name}", "another")
        return Outcome.OK

    world.store.faults = upload_again
    world.batches("runner").run()
    burned, own = world.warehouse.jobs.values()
    assert burned.source_uris == () and own.state == "DONE"
    assert world.loaded == ["shop/orders/1"] and world.waiting() == {}
    [settled] = world.batches().states.read("shop/orders").value.applied
    assert settled.generation == world.source.objects["shop/orders/1/_SUCCESS"].generation


def test_another_job_under_the_id_is_never_taken_for_ours() -> None:
    world = FilesWorld()
    world.warehouse.held = True
    world.batch("shop/orders/1")
    world.run()
    [job_id] = world.warehouse.jobs
    world.warehouse.jobs[job_id] = JobStatus(job_id, "DONE", ("gs://other/file",))
    world.run()
    [stopped] = world.batches().status().tables[0].stopped
    assert "foreign_job" in stopped.why


def test_a_job_that_the_warehouse_may_have_forgotten_is_not_submitted_again() -> None:
    world = FilesWorld()
    world.warehouse.held = True
    world.batch("shop/orders/1")
    world.run()
    world.warehouse.jobs.clear()
    world.store.time_ms += 31 * 24 * 3600 * 1000
    world.run()
    [stopped] = world.batches().status().tables[0].stopped
    assert "old_job" in stopped.why and len(world.warehouse.inserted) == 1


def test_a_lost_state_stops_its_table_alone_and_a_lost_registry_all() -> None:
    world = FilesWorld()
    world.batch("shop/orders/1")
    world.batch("shop/customers/1")
    world.run()
    world.store.delete(file_state_path("shop/orders"))
    world.batch("shop/orders/2")
    world.batch("shop/customers/2")
    report = world.run()
    assert [each.error != "" for each in report.tables] == [False, True]
    assert world.loaded[-1] == "shop/customers/2" and "shop/orders/2" not in world.loaded
    world.store.delete(file_registry_path())
    with pytest.raises(MissingState):
        world.run()


def test_more_batches_than_a_state_lists_are_never_applied_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_batches, "APPLIED", ArchiveRule(6, 3))
    world = FilesWorld(order_per_table=True)
    for number in range(20):
        world.batch(f"shop/orders/{number:02}")
        world.run()
    state = world.batches().states.read("shop/orders").value
    assert state.archived and len(state.applied) <= 6
    world.run()
    assert len(world.loaded) == 20
    world.store.delete("filebatches/applied/shop%2Forders/3.json")
    assert "is missing" in world.run().tables[0].error


def test_decisions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_batches, "DECISIONS", ArchiveRule(4, 2))
    world = FilesWorld()
    for number in range(9):
        world.batch(f"shop/orders/{number}")
        world.batches().skip("shop/orders", f"shop/orders/{number}", f"reason {number}", "me")
    kept = world.batches().decisions("shop/orders")
    assert [each.reason for each in kept] == [f"reason {number}" for number in range(9)]
    assert world.run().tables[0].applied == 0


def test_a_decision_about_an_unknown_batch_is_refused() -> None:
    world = FilesWorld()
    world.batch("shop/orders/1")
    with pytest.raises(NotFound):
        world.batches().retry("shop/orders", "shop/orders/2", "", "me")
    with pytest.raises(NotFound):
        world.batches().skip("shop/other", "shop/other/2", "", "me")


def test_a_data_source_names_its_jobs() -> None:
    world = FilesWorld()
    world.put("_config/load.json", '{"dataSourceName": "on-prem edw"}')
    world.batch("shop/orders/2020/01/02/b1")
    world.run()
    [job] = world.warehouse.inserted
    assert job.job_id == "kbq-on_prem_edw-shop-orders-2020-01-02-u0-1"
    assert dict(job.labels) == {"kbq": "files", "batch-id": "b1"}


def of_two_uris(**settings: object) -> FilesWorld:
    world = FilesWorld(**settings)
    world.warehouse.limits = dataclasses.replace(world.warehouse.limits, files=2)
    return world


def test_too_many_files_for_a_job_are_named_before_it_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = of_two_uris()
    world.batch("shop/orders/1", "a1", "b1", "c1")
    for name in "abc":
        world.put(f"shop/orders/1/{name}0", "")  # empty: no file of the batch
    world.run()
    [stopped] = world.batches().status().tables[0].stopped
    assert "3 files" in stopped.why and not world.warehouse.jobs
    monkeypatch.setattr(prefix_run, "MOST_FILES", 3)
    world.batch("shop/items/1", "a1", "a2", "a3", "a4")
    world.run()
    assert (
        "4 files, but a job takes at most 3: put its files"
        in world.batches().status().tables[0].stopped[0].why
    )


def test_a_batch_that_no_job_takes_is_applied_in_parts() -> None:
    world = of_two_uris(order_per_table=True)
    world.warehouse.limits = dataclasses.replace(world.warehouse.limits, bytes=50)
    path = "shop/orders/1"
    world.batch(path, "a/1", "a/2", "b/1", "b/2")
    world.batch("shop/orders/2")
    world.run()
    assert world.waiting() == {path: "failed", "shop/orders/2": "waits"} and not world.warehouse.jobs
    for part in "ab":
        world.put(f"{path}/{part}/_SUCCESS", "")
    world.batches().skip("shop/orders", path, "in parts", "me")
    world.run()
    assert world.loaded == [f"{path}/a", f"{path}/b", "shop/orders/2"] and world.waiting() == {}


@pytest.mark.parametrize("sql", ["", "INSERT {dest_dataset}.{dest_table}"])
def test_more_files_than_a_job_takes_are_one_job_with_patterns(sql: str) -> None:
    world = of_two_uris(order_per_table=True)
    if sql:
        world.put("shop/orders/_config/bq_transform.sql", sql)
    names = [f"part-{number}" for number in range(40)]
    world.batch("shop/orders/1", *names)
    world.batch("shop/orders/1/deeper", "part-0")
    world.batch("shop/orders/2", "part-0")
    world.warehouse.held = True
    world.run()
    [job] = world.warehouse.inserted
    assert job.source_uris == (world.source.uri("shop/orders/1/part-*"),)
    assert len(job.sizes) == 40
    world.warehouse.held = False
    world.warehouse.finish(job.job_id)
    world.run()
    assert {len(visible.contents) for visible in world.warehouse.visible} == {40, 1}
    assert len(world.warehouse.visible) == 3 and not world.waiting()


def test_a_job_with_patterns_whose_reply_is_lost_is_found_again() -> None:
    world = of_two_uris()
    world.batch("shop/orders/1", *(f"part-{number}" for number in range(9)))
    world.warehouse.faults = lambda call: Outcome.LOST_REPLY if call.operation == "insert" else Outcome.OK
    world.batches("runner").run()
    world.warehouse.faults = None
    world.run()
    assert [job.source_uris for job in world.warehouse.inserted] == [
        (world.source.uri("shop/orders/1/part-*"),)
    ]
    assert [len(visible.contents) for visible in world.warehouse.visible] == [9]
    assert not world.waiting()


def transformed(**settings: object) -> FilesWorld:
    world = ordered(**settings)
    world.put("dataset/table/incremental/_config/bq_transform.sql", "INSERT {dest_dataset}.{dest_table}")
    world.batch(f"{INCREMENTAL}/05")
    return world


def test_a_statement_applies_the_batches_below_it_alone() -> None:
    world = transformed()
    world.batch(f"{HISTORICAL}/03")
    world.run()
    load, statement = world.warehouse.inserted
    assert (load.sql, load.config["sourceFormat"]) == ("", "CSV")
    assert statement.sql == "INSERT {dest_dataset}.{dest_table}" and statement.digest
    assert statement.config == {"sourceFormat": "PARQUET"}
    assert sorted(world.loaded) == [f"{HISTORICAL}/03", f"{INCREMENTAL}/05"]


@pytest.mark.parametrize(("fails", "waiting"), [(True, {f"{INCREMENTAL}/05": "failed"}), (False, {})])
def test_a_statement_that_changes_no_row_has_failed_unless_a_setting_says_otherwise(
    fails: bool, waiting: dict[str, str]
) -> None:
    world = transformed(fail_on_zero=fails)
    world.warehouse.changed_rows = 0
    world.run()
    assert world.waiting() == waiting


def test_another_statement_under_the_id_is_never_taken_for_ours() -> None:
    world = transformed()
    world.warehouse.held = True
    world.run()
    [job_id] = world.warehouse.jobs
    world.warehouse.jobs[job_id] = JobStatus(job_id, "DONE", ("(statement)",), statement="another")
    world.run()
    [stopped] = world.batches().status().tables[0].stopped
    assert "foreign_job" in stopped.why


def test_a_statement_in_flight_keeps_its_text() -> None:
    world = transformed()
    world.warehouse.held = True
    world.run()
    world.put("dataset/table/incremental/_config/bq_transform.sql", "DELETE")
    world.warehouse.jobs.clear()
    world.run()
    assert [job.sql for job in world.warehouse.inserted] == ["INSERT {dest_dataset}.{dest_table}"] * 2


def test_a_file_whose_name_no_store_can_give_out_fails_its_batch_alone() -> None:
    world = FilesWorld()
    world.batch("shop/orders/1")
    world.batch("shop/orders/2")
    world.source.objects["shop/orders/1/a\x01.csv"] = world.source.objects["shop/orders/1/data.csv"]
    world.run()
    assert world.loaded == ["shop/orders/2"] and world.waiting() == {"shop/orders/1": "failed"}
    world.batches().skip("shop/orders", "shop/orders/1", "", "me")
    assert world.waiting() == {}
