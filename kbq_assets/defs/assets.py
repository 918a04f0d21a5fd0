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
from kbq_assets.defs.extraction.step import ExtractionStep
from kbq_assets.defs.loading.complete_hours import complete_hours_spec
from kbq_assets.defs.loading.datasets import dataset_specs
from kbq_assets.defs.loading.step import LoadStep
from kbq_assets.defs.runs import StepEvents
from kbq_assets.pipelines.catalog.datasets import Datasets
from kbq_assets.ports.engine import ExtractionEngine

Read = TypeVar("Read")
_LOGGER: Final = logging.getLogger("kbq.dagster")

#: Each pool has one slot (dagster.yaml): one extraction and one load at a time, however they were started.
EXTRACT_POOL = "kbq_extract"
LOAD_POOL = "kbq_load"


def build_assets(extraction: ExtractionStep, load: LoadStep) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Topics and tables (external), staged files, and the assets that materialize tables.

    If the catalog cannot be read, topics and tables have no pages, and every run names what is wrong: Dagster still
    loads the code location, with its jobs, history and sensors.
    """
    translator, deployment = extraction.translator, extraction.extractor.deployment
    settings = deployment.settings
    sources: tuple[SourceEntry, ...] = _readable(deployment.sources.read, ())
    topics = translator.topic_specs(sources)
    tables = _readable(deployment.sources.datasets, Datasets({})).tables
    with warnings.catch_warnings():
        # KBQ needs a single run for any selection; Dagster calls that API beta.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return [
            *topics,
            *dataset_specs(translator, settings, tables, sources),
            _staged_files(extraction, translator.staged_spec(settings, topics)),
            _tables(load, translator.tables_spec(settings)),
            _tables(load, translator.errors_spec(settings)),
            complete_hours_spec(translator),
        ]


def _readable(read: Callable[[], Read], otherwise: Read) -> Read:
    try:
        return read()
    except ConfigurationError as error:
        _LOGGER.warning("the assets of topics and tables are missing: %s", error)
        return otherwise


def _staged_files(step: ExtractionStep, spec: dg.AssetSpec) -> dg.AssetsDefinition:
    def staged_files(
        context: dg.AssetExecutionContext, extraction_engine: dg.ResourceParam[ExtractionEngine]
    ) -> StepEvents:
        yield from whole_choice(context, spec.key, lambda keys: step.run(context, extraction_engine, keys))

    return dg.multi_asset(
        name="staged_files",
        specs=[spec],
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=EXTRACT_POOL,
    )(staged_files)


def _tables(step: LoadStep, spec: dg.AssetSpec) -> dg.AssetsDefinition:
    def tables(context: dg.AssetExecutionContext) -> StepEvents:
        yield from whole_choice(context, spec.key, lambda keys: step.run(context, keys, spec.key))

    return dg.multi_asset(
        name=spec.key.to_python_identifier(),
        specs=[spec],
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=LOAD_POOL,
    )(tables)
