"""The code location: the shipped definitions are valid, their import reads nothing, and workers never import them."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._daemon.monitoring.run_monitoring import check_run_timeout

import kbq_assets.defs
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.defs import pages
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets_tests.defs.world import TOPIC, PlatformWorld
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fixtures.local_stack import REPOSITORY

MAX_RUNTIME = "dagster/max_runtime"
HOME = Path(kbq_assets.defs.__file__).parent / "home"


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code in a separate process, with only these variables set."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), **environ},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_importing_the_definitions_reads_no_environment() -> None:
    code = (
        "import os, dagster, dagster_pyspark, numba, pyspark, confluent_kafka\n"  # these read what they like
        "class Watched(dict):\n"
        "    def get(self, key, default=None):\n"
        "        assert not key.startswith('KBQ_'), key\n"
        "        return default\n"
        "    __getitem__ = get\n"
        "    def __iter__(self): raise AssertionError('read as a whole')\n"
        "    keys = items = values = copy = __iter__\n"
        "os.environ = Watched()\n"
        "import kbq_assets.definitions, kbq_assets.defs.build, kbq_assets.defs.instance.orchestrator\n"
        "print('untouched')\n"
    )
    ran = python(code, HOME="/nonexistent")
    assert (ran.stdout, ran.returncode) == ("untouched\n", 0), ran.stderr


@pytest.mark.parametrize(
    "module", ["kbq_assets.worker.task", "kbq_assets.adapters.spark.engine", "kbq_assets.cli"]
)
def test_workers_and_commands_do_not_import_dagster(module: str) -> None:
    code = f"import sys, {module}\nprint(sorted(m for m in sys.modules if m.startswith('dagster')))"
    ran = python(code)
    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr


def test_a_command_that_starts_spark_does_not_import_dagster(tmp_path: Path) -> None:
    """Its import takes a second of each `kbq extract`."""
    ran = python(
        "import sys; from kbq_assets.definitions import parts\n"
        f"made = parts({{'KBQ_HOME': {str(tmp_path)!r}}})\n"
        "made.adapters.engine(), made.adapters.resident_engines()\n"
        "made.compactor.open_rewriter(), made.loader.open_tasks(), made.erasures\n"
        "print([m for m in sys.modules if m.startswith('dagster')])"
    )
    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("target", [["-w", "workspace.yaml"], ["-m", "kbq_assets.definitions"]])
def test_dagster_validates_the_code_location(tmp_path: Path, target: list[str]) -> None:
    (tmp_path / "dagster.yaml").write_bytes((HOME / "dagster.yaml").read_bytes())
    ran = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", *target],
        env={"PATH": "/usr/bin:/bin", "DAGSTER_HOME": str(tmp_path), "KBQ_HOME": str(tmp_path / "kbq")},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "kbq").exists(), "looking at definitions must not create anything"


def test_the_shipped_configuration_limits_extractions_and_loads_to_one(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_bytes((HOME / "dagster.yaml").read_bytes())
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        limits = {limit["key"]: limit["limit"] for limit in queue.tag_concurrency_limits}
        assert limits == {"kbq/extract": 1, "kbq/load": 1}
        assert not instance.telemetry_enabled
        assert instance.run_monitoring_enabled
        assert instance.run_retries_enabled


@pytest.mark.parametrize(
    ("tags", "hours", "goes_on"),
    [
        ({}, 5.9, True),
        ({}, 6.1, False),
        ({MAX_RUNTIME: "2400"}, 0.7, False),
        ({MAX_RUNTIME: "28800"}, 7, True),
    ],
)
def test_a_run_that_reports_nothing_holds_its_place_for_six_hours_or_what_its_job_says(
    tmp_path: Path, tags: dict[str, str], hours: float, goes_on: bool
) -> None:
    (tmp_path / "dagster.yaml").write_bytes((HOME / "dagster.yaml").read_bytes())
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        run = dg.DagsterRun(job_name="__ASSET_JOB", status=dg.DagsterRunStatus.STARTED, tags=tags)
        run_id = instance.add_run(run).run_id
        [record] = instance.get_run_records(dg.RunsFilter(run_ids=[run_id]))
        longest = float(instance.run_monitoring_max_runtime_seconds)
        begun = record._replace(start_time=time.time() - hours * 3600)
        check_run_timeout(instance, begun, logging.getLogger("monitoring"), longest)
        [now] = instance.get_runs(dg.RunsFilter(run_ids=[run_id]))
        assert now.is_finished is not goes_on


@pytest.mark.parametrize("name", ["dagster.yaml", "workspace.yaml"])
def test_the_files_at_the_root_are_copies_of_what_ships(name: str) -> None:
    assert not (REPOSITORY / name).is_symlink(), "zip archives and Windows lose links"
    assert (REPOSITORY / name).read_bytes() == (HOME / name).read_bytes()


def test_a_missing_catalog_fails_runs_with_its_name_and_leaves_the_code_location_whole(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    world = PlatformWorld(tmp_path)
    (tmp_path / "topics.txt").unlink()
    world = world.reopened()
    definitions = world.definitions
    overview = {dg.AssetKey(name) for name in ("staged_files", "warehouse_tables", "complete_hours")}
    assert definitions.resolve_asset_graph().get_all_asset_keys() == overview
    dg.Definitions.validate_loadable(definitions)
    with pytest.raises(ConfigurationError, match=r"topics\.txt cannot be read.*\n?.*KBQ_SOURCE_TOPICS"):
        definitions.resolve_job_def("extract_job").execute_in_process(instance=instance)


def test_jobs_carry_the_tags_that_are_limited(world: PlatformWorld) -> None:
    limited = {"kbq/extract", "kbq/load"}
    tags = {
        name: limited & set(world.definitions.resolve_job_def(name).run_tags)
        for name in ("extract_and_load", "extract_job", "load_job", "clean_job", "reconcile_job")
    }
    assert tags == {
        "extract_and_load": {"kbq/extract", "kbq/load"},
        "extract_job": {"kbq/extract"},
        "load_job": {"kbq/load"},
        "clean_job": set(),
        "reconcile_job": set(),
    }


def test_the_lineage_goes_from_each_topic_over_its_files_to_its_tables(world: PlatformWorld) -> None:
    graph = world.definitions.resolve_asset_graph()
    topic, staged = dg.AssetKey(["kafka", TOPIC]), dg.AssetKey(["staged", TOPIC])
    assert graph.get(staged).parent_keys == {topic}
    tables = {dg.AssetKey(["nyc", name]) for name in ("flights", "kbq_errors")}
    assert {table: graph.get(table).parent_keys for table in tables} == {key: {staged} for key in tables}
    assert graph.materializable_asset_keys == {staged, *tables}


def test_topics_and_tables_that_were_found_have_pages_after_a_reload(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.kafka.create_topic("other.a")
    world.produce(1, topic="other.a")
    world.run("extract_and_load", instance)
    graph = world.reopened().definitions.resolve_asset_graph()
    table, staged = dg.AssetKey(["nyc", "Flight"]), dg.AssetKey(["staged", "other.a"])
    assert graph.get(staged).parent_keys == {dg.AssetKey(["kafka", "other.any"])}
    assert graph.get(table).parent_keys == {staged}


def test_a_store_that_does_not_answer_costs_found_pages_and_no_named_one(
    world: PlatformWorld, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.kafka.create_topic("other.a")
    world.produce(1, topic="other.a")
    world.run("extract_and_load", instance)
    monkeypatch.setattr(pages, "_STORE_SECONDS", 0.0)
    answer = threading.Event()
    world.store.faults = lambda call: Outcome.OK if answer.wait() else Outcome.UNAVAILABLE
    world.store = world.store.view("kbq")  # type: ignore[assignment]
    keys = world.reopened().definitions.resolve_asset_graph().materializable_asset_keys
    answer.set()
    assert keys == {
        dg.AssetKey(path) for path in (["staged", TOPIC], ["nyc", "flights"], ["nyc", "kbq_errors"])
    }


def test_topics_that_differ_in_punctuation_have_steps_of_their_own(tmp_path: Path) -> None:
    world = PlatformWorld(tmp_path)
    (tmp_path / "topics.txt").write_text("a-b\na_b\na.b-\n")
    dg.Definitions.validate_loadable(world.reopened().definitions)


def test_any_partitions_of_a_topic_are_asked_for_as_one_run(world: PlatformWorld) -> None:
    staged = world.definitions.resolve_asset_graph().get(dg.AssetKey(["staged", TOPIC]))
    assert staged.backfill_policy == dg.BackfillPolicy.single_run()


class Renaming(AssetTranslator):
    """A translator that gives assets other keys than their events."""

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(key=dg.AssetKey(["mine", *spec.key.path]))


def test_a_translator_of_ones_own_changes_specs_but_not_keys(world: PlatformWorld) -> None:
    with pytest.raises(ConfigurationError, match=r"mine/.*\n?.*prefix"):
        world.parts.definitions(Renaming())
