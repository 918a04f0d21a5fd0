"""The assets: each topic's staged files, and each table. Materializing one brings it up to date."""

# No postponed annotations here: Dagster reads the annotation of `context`.

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import dagster as dg
from dagster_pyspark import PySparkResource

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.defs.extraction.backfills import whole_choice
from kbq_assets.defs.extraction.step import ExtractionStep
from kbq_assets.defs.loading.datasets import dataset_spec
from kbq_assets.defs.loading.step import LoadStep
from kbq_assets.defs.pages import Pages
from kbq_assets.defs.runs import StepEvents
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.ports.engine import ExtractionEngine

#: Each pool has one slot (dagster.yaml), so one extraction and one load run at a time, however they were started.
EXTRACT_POOL: Final = "kbq_extract"
LOAD_POOL: Final = "kbq_load"


def build_assets(extraction: ExtractionStep, load: LoadStep) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """External assets for topics, materializable assets for each topic's staged files and each table, and the pages
    that show all of them together.

    A run can materialize any selection of tables. Each topic has its own partitions, so Dagster makes a run per topic.
    The first run of a backfill does the work of all of them (`backfills`).
    """
    pages, settings = extraction.pages, extraction.extractor.deployment.settings
    translator = pages.translator
    tables = {key: dataset_spec(settings, pages, table) for key, table in pages.loaded.items()}
    external = [
        *translator.topic_specs(pages.sources),
        translator.staged_files_spec(settings),
        translator.tables_spec(settings),
        complete_hours_spec(translator),
    ]
    names = _unique_names(pages)
    own = shown_by(translator)
    return [
        *map(own, external),
        *(
            _staged(extraction, pages, names[topic], own(translator.staged_spec(settings, topic, entry)))
            for topic, entry in pages.topics.items()
        ),
        *([tables_asset(load, [own(spec) for spec in tables.values()])] if tables else []),
    ]


def shown_by(translator: AssetTranslator) -> Callable[[dg.AssetSpec], dg.AssetSpec]:
    """A function that applies the translator to a spec. Raises ConfigurationError if the translator changes the key."""

    def shown(spec: dg.AssetSpec) -> dg.AssetSpec:
        found = translator.get_asset_spec(spec)
        if found.key != spec.key:
            raise ConfigurationError(
                f"get_asset_spec changes the key {spec.key.to_user_string()} to {found.key.to_user_string()}",
                next_step="keep the key, and set the translator's prefix",
            )
        return found

    return shown


def _unique_names(pages: Pages) -> Mapping[str, str]:
    """The name of each topic's step. Topics that differ only in punctuation get a number."""
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for key, topic in sorted(pages.staged.items()):
        name = key.to_python_identifier()
        seen[name] += 1
        names[topic] = name if seen[name] == 1 else f"{name}___{seen[name]}"
    return names


def _staged(step: ExtractionStep, pages: Pages, name: str, spec: dg.AssetSpec) -> dg.AssetsDefinition:
    def staged_files(
        context: dg.AssetExecutionContext, extraction_engine: dg.ResourceParam[ExtractionEngine]
    ) -> StepEvents:
        yield from whole_choice(
            context, pages.staged, lambda keys: step.run(context, extraction_engine, keys)
        )

    return dg.multi_asset(
        name=name, specs=[spec], backfill_policy=dg.BackfillPolicy.single_run(), pool=EXTRACT_POOL
    )(staged_files)


def tables_asset(
    step: LoadStep, specs: list[dg.AssetSpec], name: str = "tables", pool: str = LOAD_POOL
) -> dg.AssetsDefinition:
    """The tables of a warehouse. A run can materialize any of them."""

    def tables(
        context: dg.AssetExecutionContext, lake_spark: dg.ResourceParam[PySparkResource]
    ) -> StepEvents:
        chosen = sorted(str(step.pages.loaded[key]) for key in context.selected_asset_keys)
        yield from step.run(context, lake_spark, chosen)

    return dg.multi_asset(name=name, specs=specs, can_subset=True, pool=pool)(tables)


def complete_hours_spec(translator: AssetTranslator) -> dg.AssetSpec:
    """An external asset with a partition per table."""
    return dg.AssetSpec(
        translator.complete_hours,
        deps=[translator.warehouse_tables],
        description=(
            "Materialized for a table when some of its hours have become complete by business time: all partitions are "
            "past them, and everything is loaded. Assets that need whole hours depend on this asset, not on the tables."
        ),
        group_name="warehouse",
        owners=list(translator.owners),
        partitions_def=translator.table_partitions,
    )
