"""Spark for extraction: in Dagster the resource of dagster-pyspark or of the user, in `kbq extract` its own context."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource, PySparkResource

from kbq_assets.core.config.settings import Settings, parse_settings
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.definitions import Adapters
from kbq_assets.defs.build import default_resources
from kbq_assets.defs.extraction.engine import ENGINE, PYSPARK, KbqPySpark
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.worker.engines import Spark, open_rewriter, open_writer
from kbq_assets_tests.adapters.iceberg.test_compaction import Lake
from kbq_assets_tests.adapters.iceberg.test_tasks import job_of
from kbq_assets_tests.contracts.compaction import all_files, view_of


def settings_of(folder: Path, **environ: str) -> Settings:
    return parse_settings({"KBQ_HOME": str(folder), "KBQ_SPARK_MASTER": "local[1]", **environ})


class UsersSpark(PySparkResource):
    """A user's own way to start Spark, which never starts one."""

    spark_config: dict[str, Any] = {}

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Start nothing."""

    @property
    def spark_context(self) -> Any:
        raise LookupError("the user's Spark was asked")


def run_op(resources: dict[str, Any], use: Any) -> None:
    @dg.op
    def uses(extraction_engine: dg.ResourceParam[ExtractionEngine]) -> None:
        use(extraction_engine)

    job = dg.GraphDefinition(name="uses_engine", node_defs=[uses]).to_job(resource_defs=resources)
    assert job.execute_in_process().success


def test_a_run_without_work_starts_no_spark(tmp_path: Path) -> None:
    run_op(default_resources(settings_of(tmp_path)), lambda engine: None)
    assert not (tmp_path / "spark-events").exists()


def test_extraction_takes_its_context_from_whatever_is_the_pyspark_resource(tmp_path: Path) -> None:
    def use(engine: ExtractionEngine) -> None:
        with pytest.raises(LookupError, match="the user's Spark was asked"):
            engine.submit(())

    run_op(default_resources(settings_of(tmp_path), {PYSPARK: UsersSpark()}), use)


def test_dagster_pysparks_own_resources_may_replace_it(tmp_path: Path) -> None:
    for own in (PySparkResource(spark_config={}), LazyPySparkResource(spark_config={})):
        found = default_resources(settings_of(tmp_path), {PYSPARK: own})
        assert found[PYSPARK] is own
        assert isinstance(found[ENGINE], dg.ConfigurableResource)


def test_no_variable_of_spark_is_shown_as_configuration(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, **{"KBQ_SPARK_CONF_spark.hadoop.fs.s3a.secret.key": "hunter2"})
    resource = KbqPySpark(settings=settings)
    shown = resource.model_dump() | resource.model_json_schema()
    assert "hunter2" not in repr({name: shown[name] for name in shown if name != "settings"})
    config = dg.Definitions(resources={PYSPARK: resource}).get_repository_def()
    [top_level] = config.get_top_level_resources().values()
    assert top_level.config_field is not None
    assert "hunter2" not in repr((top_level.config_field.default_value, top_level.config_schema.as_field()))


@pytest.mark.spark
def test_under_kbq_extract_a_context_starts_and_stops_with_the_engine(tmp_path: Path) -> None:
    adapters = Adapters(settings_of(tmp_path))
    with adapters.engine() as engine:
        context = engine._context  # type: ignore[attr-defined]
        assert context.parallelize([1], 1).map(str).collect() == ["1"]
        assert context.getConf().get("spark.app.name") == "kbq"
        assert engine.idle_slots == 1
    assert context._jsc is None, "it stops with the run"


@pytest.mark.thorough
@pytest.mark.spark
def test_options_of_the_resource_win_and_a_session_is_on_the_same_context(tmp_path: Path) -> None:
    resource = KbqPySpark(settings=settings_of(tmp_path), spark_config={"spark.app.name": "mine"})
    with resource.process_config_and_initialize_cm() as spark:
        assert spark.spark_context.appName == "mine"
        assert spark.spark_session.sparkContext is spark.spark_context
        assert spark.spark_session.range(3).count() == 3
        check_compaction(tmp_path, settings_of(tmp_path), lambda: spark.spark_context)
        check_load(tmp_path, settings_of(tmp_path), lambda: spark.spark_context)


@pytest.mark.thorough
def test_processes_of_this_machine_do_what_spark_does(tmp_path: Path) -> None:
    processes = settings_of(tmp_path, KBQ_SPARK_MASTER="processes[2]")
    check_compaction(tmp_path, processes)
    check_load(tmp_path, processes)


def check_compaction(folder: Path, settings: Settings, spark: Spark | None = None) -> None:
    """Tasks rewrite a lake's files, and the driver commits."""
    lake = Lake(folder)
    for offset in range(6):
        lake.load(offset)
    task = all_files(view := view_of(lake))
    lost = dataclasses.replace(
        task, group=dataclasses.replace(task.group, paths=("file:///none/data/a.parquet",))
    )
    with open_rewriter(in_lake(settings, folder / "lake"), spark) as rewriter:
        result, failed = rewriter([task, lost])
    assert (result.failure, result.difference, failed.gone) == ("", "", True)
    lake.compaction.replace_files(view, [result])
    assert (len(view_of(lake).files), lake.offsets()) == (1, list(range(6)))
    with pytest.raises(ConfigurationError, match="is not a lake"), open_rewriter(settings, spark):
        pass


def in_lake(settings: Settings, lake: Path) -> Settings:
    return dataclasses.replace(settings, warehouse_urls=f"iceberg:{lake}")


def check_load(folder: Path, settings: Settings, spark: Spark | None = None) -> None:
    """Tasks write a job's files, and the driver commits; a bad file fails the job."""
    lake = Lake(folder / "loads")
    good, bad = job_of(folder, 1), job_of(folder, 2)
    (folder / "2-0.avro").write_bytes(b"no Avro")
    with open_writer(in_lake(settings, folder / "loads" / "lake"), spark) as writer:
        by_tasks = lake.warehouse.by_tasks(writer, 1)
        by_tasks.insert_job(good)
        assert lake.offsets() == list(range(20, 40))
        by_tasks.insert_job(bad)
    status = by_tasks.get_job(bad.job_id, "local", "local", bad.table)
    assert status is not None
    assert status.error is not None
    assert status.error.reason == "damaged"
    assert lake.offsets() == list(range(20, 40))


def test_spark_that_does_not_start_leaves_the_job_to_the_next_run(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    settings = settings_of(tmp_path, KBQ_WAREHOUSE=f"iceberg:{tmp_path}/lake")
    job = job_of(tmp_path, 1)
    with open_writer(settings, lambda: UsersSpark().spark_context) as writer:
        by_tasks = lake.warehouse.by_tasks(writer, 1)
        with pytest.raises(Unavailable, match="the user's Spark was asked"):
            by_tasks.insert_job(job)
    assert by_tasks.get_job(job.job_id, "local", "local", job.table) is None
