"""The assets: staged files, warehouse tables and error tables. Materializing one brings it up to date."""

# Dagster reads the annotation of `context`: no postponed annotations here.

import logging
import warnings
from collections.abc import Callable
from typing import Final, TypeVar

import dagster as dg

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.defs.extraction.backfills import whole_choice
from kbq_assets.defs.loading.complete_hours import complete_hours_spec
from kbq_assets.defs.loading.datasets import dataset_specs
from kbq_assets.defs.runs import StepEvents, Steps
from kbq_assets.pipelines.catalog.datasets import Datasets
from kbq_assets.ports.engine import ExtractionEngine

Read = TypeVar("Read")
_LOGGER: Final = logging.getLogger("kbq.dagster")

#: Each pool has one slot (dagster.yaml): one extraction and one load at a time, however they were started.
EXTRACT_POOL = "kbq_extract"
LOAD_POOL = "kbq_load"


def build_assets(steps: Steps) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Topics and tables (external), staged files, and the assets that materialize tables.

    If the catalog cannot be read, topics and tables have no pages, and every run names what is wrong: Dagster still
    loads the code location, with its jobs, history and sensors.
    """
    sources: tuple[SourceEntry, ...] = _readable(steps.deployment.sources.read, ())
    topics = steps.translator.topic_specs(sources)
    with warnings.catch_warnings():
        # KBQ needs a single run for any selection; Dagster calls that API beta.
        warnings.simplefilter("ignore", dg.BetaWarning)
        translator, settings = steps.translator, steps.deployment.settings
        return [
            *topics,
            *dataset_specs(
                translator,
                settings,
                _readable(steps.deployment.sources.datasets, Datasets({})).tables,
                sources,
            ),
            _staged_files(steps, topics),
            _tables(steps, translator.tables_spec(settings)),
            _tables(steps, translator.errors_spec(settings)),
            complete_hours_spec(translator),
        ]


def _readable(read: Callable[[], Read], otherwise: Read) -> Read:
    try:
        return read()
    except ConfigurationError as error:
        _LOGGER.warning("the assets of topics and tables are missing: %s", error)
        return otherwise


def _staged_files(steps: Steps, topics: list[dg.AssetSpec]) -> dg.AssetsDefinition:
    def staged_files(
        context: dg.AssetExecutionContext, extraction_engine: dg.ResourceParam[ExtractionEngine]
    ) -> StepEvents:
        asset = steps.translator.staged_files
        yield from whole_choice(context, asset, lambda keys: steps.extract(context, extraction_engine, keys))

    return dg.multi_asset(
        name="staged_files",
        specs=[steps.translator.staged_spec(steps.deployment.settings, topics)],
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=EXTRACT_POOL,
    )(staged_files)


def _tables(steps: Steps, spec: dg.AssetSpec) -> dg.AssetsDefinition:
    def tables(context: dg.AssetExecutionContext) -> StepEvents:
        yield from whole_choice(context, spec.key, lambda keys: steps.load(context, keys, spec.key))

    return dg.multi_asset(
        name=spec.key.to_python_identifier(),
        specs=[spec],
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=LOAD_POOL,
    )(tables)
