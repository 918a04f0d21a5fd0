"""A file and its restaged replacement: at most one of them is loaded (PROTOCOL L14)."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from kbq_assets.core.errors import Refused, Unavailable
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.operate.restage import RestagePorts, propose_restage
from kbq_assets.pipelines.protocol import state
from kbq_assets.worker.unit import WorkerPorts, extract_unit
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.bench import SETTINGS, TOPIC, TP, A, Bench, value


def ports(bench: Bench) -> RestagePorts:
    store, kafka = bench.store.view("operator"), bench.kafka.view("operator")
    worker = WorkerPorts(store, kafka, bench.registry, bench.clock)
    read_again = partial(extract_unit, ports=worker, again=True)
    return RestagePorts(store, kafka, read_again, lambda topics: {TOPIC: bench.settings})


def restage(bench: Bench, path: str) -> None:
    propose_restage(ports(bench), path).apply()


def staged() -> tuple[Bench, str]:
    """Two files of A with two rows each, and the path of the first."""
    bench = Bench()
    for _ in range(2):
        bench.produce(1, 1)
        bench.extract()
    return bench, next(file.path for file in bench.commit().files)


def test_a_loader_that_planned_the_old_file_and_one_that_plans_the_new_one_load_it_once() -> None:
    bench, path = staged()
    bench.faults = Script("swap", "tables/d.A", nth=2, before=lambda: restage(bench, path))
    bench.load()
    bench.faults = Script("")
    bench.load()
    assert bench.offsets(A) == [0, 1, 2, 3]


@pytest.mark.parametrize("lost", [True, False])
def test_a_file_that_moves_to_the_backlog_while_it_is_read_again_is_loaded_once(lost: bool) -> None:
    """The old file is entered into the backlog after the swap of the commit: both are listed."""
    bench, path = staged()
    state.create_table_state(bench.store, A, "u")
    operate.propose_park_table(bench.store, A).apply()
    bench.faults = Script("create", "backlog/d.A/", before=lambda: restage(bench, path))
    bench.extract()
    bench.faults = Script("")
    if lost:
        bench.store.delete(path)
    assert bench.paths("backlog/d.A/") != []
    assert path not in {file.path for file in bench.commit().files}
    operate.propose_resume_table(bench.store, A).apply()
    bench.load()
    assert bench.offsets(A) == [0, 1, 2, 3]
    assert bench.warehouse.duplicates() == {}


def test_a_file_is_read_again_twice() -> None:
    bench, path = staged()
    restage(bench, path)
    second = next(file for file in bench.commit().files)
    restage(bench, second.path)
    third = next(file for file in bench.commit().files)
    assert (second.restaged, third.restaged, len({path, second.path, third.path})) == (1, 2, 3)
    alike = [dataclasses.replace(file, path="", crc32c="", restaged=0) for file in (second, third)]
    assert alike[0] == alike[1]
    bench.load()
    assert clean(bench.store).orphans == 2
    assert (bench.offsets(A), bench.paths("staging/")) == ([0, 1, 2, 3], [])


def test_a_janitor_that_takes_the_new_file_for_an_orphan_is_reported() -> None:
    bench, path = staged()
    bench.faults = Script("swap", f"commits/{TOPIC}", before=lambda: clean(bench.store))
    with pytest.raises(Unavailable, match="orphan"):
        restage(bench, path)
    bench.faults = Script("")
    restage(bench, next(file.path for file in bench.commit().files))
    bench.load()
    assert bench.offsets(A) == [0, 1, 2, 3]


def test_a_file_of_a_load_job_in_flight_is_refused() -> None:
    bench, path = staged()
    bench.warehouse.auto_run = False
    bench.load(wait_seconds=0.0)
    with pytest.raises(Refused, match=r"is in load job kbq-"):
        restage(bench, path)


def test_a_file_below_the_mark_is_refused_even_if_the_commit_still_lists_it() -> None:
    bench, path = staged()
    bench.load()
    with pytest.raises(Refused, match="below the mark"):
        restage(bench, path)


def test_a_topic_that_was_recreated_is_refused() -> None:
    bench, path = staged()
    bench.kafka.recreate_topic(TOPIC)
    bench.produce(1, 1, 1, 1)
    with pytest.raises(Refused, match="no longer has the topic"):
        restage(bench, path)


def test_a_compacted_range_is_refused_and_nothing_changes() -> None:
    bench, path = staged()
    before = dict(bench.store.objects)
    bench.kafka.compact(TP, 1)
    with pytest.raises(Refused, match="had 2 rows"):
        restage(bench, path)
    assert bench.store.objects == before


@pytest.mark.parametrize("lost", [0, 1])
def test_a_file_of_one_hour_is_read_again_among_the_other_hours_of_its_window(lost: int) -> None:
    bench = Bench(settings=SETTINGS.with_options(order="hour"), window=WindowLimits(records=100))
    for minute in (65, 5, 66, 6):
        bench.kafka.produce(TP, value(1), timestamp=minute * 60_000)
    bench.extract()
    files = list(bench.commit().files)
    assert [(file.name.first_offset, file.rows) for file in files] == [(0, 2), (1, 2)]
    bench.store.delete(files[lost].path)
    restage(bench, files[lost].path)
    bench.load()
    assert sorted(bench.offsets(A)) == [0, 1, 2, 3]
