"""The Dagster definitions of a deployment: its assets, checks, jobs and sensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from kbq_assets.core.config.locations import Bucket
from kbq_assets.core.config.settings import Settings
from kbq_assets.defs.assets import build_assets
from kbq_assets.defs.compaction.assets import compaction_definitions
from kbq_assets.defs.extraction.engine import ENGINE, PYSPARK, KbqPySpark, SparkExtraction
from kbq_assets.defs.extraction.step import ExtractionStep
from kbq_assets.defs.instance.run_retention import build_history
from kbq_assets.defs.jobs import build_jobs, clean_schedule
from kbq_assets.defs.lake_tasks import LAKE_SPARK, LakeSpark
from kbq_assets.defs.loading.completeness import build_completeness_sensor
from kbq_assets.defs.loading.other_warehouses import other_warehouse_definitions
from kbq_assets.defs.loading.step import LoadStep
from kbq_assets.defs.observation.checks import build_check_sensor, build_checks
from kbq_assets.defs.pages import read_pages
from kbq_assets.defs.sensors import done_file_sensor_of, extraction_sensor_of
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.pipelines.spine import Spine


def build_definitions(
    spine: Spine,
    translator: AssetTranslator,
    resources: Mapping[str, Any] | None = None,
) -> dg.Definitions:
    """The definitions of a deployment, by default with `default_resources`. Raises ConfigurationError."""
    settings = spine.deployment.settings
    pages = read_pages(spine.deployment, translator)
    extraction = ExtractionStep(spine.extractor, spine.observer, pages)
    load = LoadStep(spine.loader, spine.observer, pages)
    jobs = build_jobs(extraction, load, spine.operator)
    history, history_schedule = build_history(settings.dagster.run_days)
    own = dg.Definitions(
        assets=build_assets(extraction, load),
        asset_checks=list(build_checks(spine.observer, pages)),
        jobs=[
            jobs.extract_and_load,
            jobs.extract,
            jobs.load,
            jobs.clean,
            jobs.reprocess,
            history,
        ],
        sensors=[
            extraction_sensor_of(spine.extractor, pages, jobs),
            done_file_sensor_of(spine.loader, spine.observer, pages, jobs),
            build_check_sensor(spine.observer, pages),
            build_completeness_sensor(spine.loader, spine.observer, pages),
        ],
        schedules=[clean_schedule(jobs, settings.run.clean_minutes), history_schedule],
        resources=default_resources(settings) if resources is None else resources,
        executor=dg.in_process_executor,
    )
    others = other_warehouse_definitions(spine, pages)
    return dg.Definitions.merge(own, others, compaction_definitions(spine, pages))


def default_resources(settings: Settings, replaced: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Spark and, on Google Cloud, the clients, configured by the settings. ``replaced`` takes precedence."""
    found: dict[str, Any] = {PYSPARK: KbqPySpark(settings=settings)}
    if isinstance(settings.staging, Bucket):
        # This imports dagster-gcp and pandas. A local deployment should not wait for them.
        from kbq_assets.defs.google import google_resources

        found |= google_resources(settings)
    found |= replaced or {}
    own = {
        ENGINE: SparkExtraction(pyspark=found[PYSPARK], settings=settings),
        LAKE_SPARK: LakeSpark(pyspark=found[PYSPARK]),
    }
    return {**own, **found}
