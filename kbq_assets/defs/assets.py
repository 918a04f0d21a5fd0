"""The assets: staged files and warehouse tables. Materialising them means "bring these up to date"."""

# Dagster reads the annotation of `context`: no postponed annotations here.

import warnings
from collections.abc import Iterator
from typing import Any

import dagster as dg

from kbq_assets.defs import metadata
from kbq_assets.defs.engine import ENGINE
from kbq_assets.defs.runs import StepEvents, Steps

#: Pools hold one slot each (dagster.yaml): one extraction and one load at a time, however they were started.
EXTRACT_POOL = "kbq_extract"
LOAD_POOL = "kbq_load"


def build_assets(steps: Steps) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Topics (external), staged files, warehouse tables. Raises ConfigurationError."""
    topics = steps.translator.topic_specs(steps.platform.sources())
    with warnings.catch_warnings():
        # A single run for any selection is what the design stands on; its API is called beta.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return [*topics, _staged_files(steps, topics), _warehouse_tables(steps)]


def _staged_files(steps: Steps, topics: list[dg.AssetSpec]) -> dg.AssetsDefinition:
    def staged_files(context: dg.AssetExecutionContext) -> StepEvents:
        yield from steps.extract(context, getattr(context.resources, ENGINE), list(context.partition_keys))

    return dg.multi_asset(
        name="staged_files",
        specs=[steps.translator.staged_spec(steps.platform.settings, topics)],
        required_resource_keys={ENGINE},
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=EXTRACT_POOL,
    )(staged_files)


def _warehouse_tables(steps: Steps) -> dg.AssetsDefinition:
    def warehouse_tables(context: dg.AssetExecutionContext) -> StepEvents:
        yield from steps.load(context, list(context.partition_keys))

    return dg.multi_asset(
        name="warehouse_tables",
        specs=[steps.translator.tables_spec(steps.platform.settings)],
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=LOAD_POOL,
    )(warehouse_tables)


def build_checks(steps: Steps) -> Iterator[dg.AssetChecksDefinition]:
    """The checks that runs write, for a person to ask again after mending."""
    platform, translator = steps.platform, steps.translator
    yield _check(
        metadata.PARTITIONS_RUN,
        translator.staged_files,
        lambda key: metadata.stops_check(key, platform.plan_extraction().stops),
    )
    yield _check(
        metadata.TABLES_LOAD,
        translator.warehouse_tables,
        lambda key: metadata.parked_check(key, platform.tables()),
    )
    yield _check(
        metadata.ROWS_MATCH,
        translator.warehouse_tables,
        lambda key: metadata.rows_check(key, platform.tables()),
    )
    yield _check(metadata.COUNTS_AGREE, translator.warehouse_tables, lambda key: steps.counts_check())


def _check(name: str, key: dg.AssetKey, evaluate: Any) -> dg.AssetChecksDefinition:
    def check() -> dg.AssetCheckResult:
        found: dg.AssetCheckEvaluation = evaluate(key)
        return dg.AssetCheckResult(
            passed=found.passed,
            severity=found.severity,
            description=found.description,
            metadata=found.metadata,
        )

    return dg.asset_check(asset=key, name=name, description=metadata.CHECKS[name])(check)
