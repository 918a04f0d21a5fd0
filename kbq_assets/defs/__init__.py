"""Dagster: translation only. What is pending, what to do and what happened is the pipelines' to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from kbq_assets.core.config.locations import Bucket
from kbq_assets.core.config.settings import Settings
from kbq_assets.defs.assets import build_assets
from kbq_assets.defs.extraction.engine import ENGINE, PYSPARK, engine_resource, pyspark_resource
from kbq_assets.defs.instance.history import build_history
from kbq_assets.defs.jobs import build_jobs, build_schedules
from kbq_assets.defs.loading.completeness import build_completeness_sensor
from kbq_assets.defs.observation.checks import build_check_sensor, build_checks
from kbq_assets.defs.runs import Steps
from kbq_assets.defs.sensors import build_sensors
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.pipelines.spine import Spine


def build_definitions(
    spine: Spine,
    translator: AssetTranslator,
    resources: Mapping[str, Any] | None = None,
) -> dg.Definitions:
    """Dagster's view of a deployment. ``resources`` replace the default ones. Raises ConfigurationError."""
    settings = spine.deployment.settings
    steps = Steps.of(spine, translator)
    jobs = build_jobs(steps)
    history, history_schedule = build_history(settings.dagster.run_days)
    return dg.Definitions(
        assets=build_assets(steps),
        asset_checks=list(build_checks(steps)),
        jobs=[
            jobs.extract_and_load,
            jobs.extract,
            jobs.load,
            jobs.clean,
            jobs.reprocess,
            history,
        ],
        sensors=[
            *build_sensors(steps, jobs),
            build_check_sensor(steps),
            build_completeness_sensor(steps),
        ],
        schedules=[*build_schedules(steps, jobs), history_schedule],
        resources={
            PYSPARK: pyspark_resource(settings),
            ENGINE: engine_resource(settings),
            **_google_resources(settings),
            **(resources or {}),
        },
        executor=dg.in_process_executor,
    )


def _google_resources(settings: Settings) -> Mapping[str, Any]:
    if not isinstance(settings.staging, Bucket):
        return {}
    # It imports dagster-gcp and pandas, which a local platform need not wait for.
    from kbq_assets.defs.google import google_resources

    return google_resources(settings)
