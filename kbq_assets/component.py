"""KBQ as a component: `dg scaffold defs kbq_assets.KafkaTopics kafka_topics` puts it into a Dagster project."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import dagster as dg
from pydantic import Field

from kbq_assets.definitions import Parts, parts
from kbq_assets.defs.build import default_resources
from kbq_assets.defs.events import BATCH_SIZE, BATCH_VARIABLE
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets.defs.lake_tasks import LAKE_SPARK
from kbq_assets.defs.translator import AssetTranslator

#: They delete old runs of a whole Dagster instance, which belongs to the project.
_OF_INSTANCE: Final = frozenset({"history_job", "history_schedule"})
_DEFAULT_OWNERS: Final = AssetTranslator().owners
#: Types of settings in YAML.
_STATED: Final = dict[str, str | int | float | bool]


def _texts(context: dg.ResolutionContext, stated: Mapping[str, str | float]) -> dict[str, str]:
    """The settings as texts, as in an environment. Only templates are resolved, because Dagster would turn a text such
    as "20" or "1,2" into another type."""
    resolved = {
        name: context.resolve_value(value) if isinstance(value, str) and "{{" in value else value
        for name, value in stated.items()
    }
    # YAML reads `on` and `off` as booleans.
    switches = {True: "on", False: "off"}
    return {
        name: switches[value] if isinstance(value, bool) else str(value) for name, value in resolved.items()
    }


class KafkaTopics(dg.Component, dg.Model, dg.Resolvable):
    """Kafka topics into BigQuery or DuckDB, exactly once: an asset per topic's staged files and per table, with checks,
    jobs and the sensors that materialize them.

    To change how assets look, subclass it and override `get_asset_spec`.
    """

    source_topics: str = Field(
        "",
        description="The source list, or the folder of a topic catalog, relative to this defs.yaml. By default "
        "KBQ_SOURCE_TOPICS.",
    )
    settings: Annotated[
        dict[str, str], dg.Resolver(_texts, model_field_type=_STATED, inject_before_resolve=False)
    ] = Field(
        default_factory=dict,
        description="KBQ_* settings, by name. They win over the environment. A secret belongs into a reference: "
        "env:NAME, file:PATH.",
    )
    key_prefix: list[str] = Field(default_factory=list, description="Goes before every asset key.")
    owners: list[str] = Field(
        default_factory=lambda: list(_DEFAULT_OWNERS), description="Owners of assets that name none."
    )

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """The spec of one of KBQ's assets as Dagster shows it. Its key must stay; `key_prefix` changes keys."""
        return spec

    def open_parts(self, environ: Mapping[str, str]) -> Parts:
        return parts(environ)

    def open_resources(self, opened: Parts) -> Mapping[str, Any]:
        """Spark, and Google's clients. Override it to start Spark in another way."""
        return default_resources(opened.adapters.settings)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Assets, checks, jobs, sensors and schedules. Raises ConfigurationError."""
        os.environ.setdefault(BATCH_VARIABLE, BATCH_SIZE)
        # Dagster warns of an argument that it passes itself, at every tick of a sensor.
        warnings.filterwarnings("ignore", "Parameter `owners` of initializer `SensorDefinition")
        opened = self.open_parts(self._environ(context))
        resources = self.open_resources(opened)
        translator = _ComponentTranslator(tuple(self.owners), tuple(self.key_prefix), self)
        found = opened.definitions(translator, resources)
        return dg.Definitions(
            assets=found.assets,
            asset_checks=found.asset_checks,
            jobs=[job for job in found.jobs or () if job.name not in _OF_INSTANCE],
            schedules=[each for each in found.schedules or () if each.name not in _OF_INSTANCE],
            sensors=found.sensors,
            # A project may have a `gcs` or a `pyspark` of its own. KBQ's steps ask for nothing but these.
            resources={key: (found.resources or {})[key] for key in (ENGINE, LAKE_SPARK)},
        )

    def _environ(self, context: dg.ComponentLoadContext) -> dict[str, str]:
        named = {"KBQ_SOURCE_TOPICS": str(context.path / self.source_topics)} if self.source_topics else {}
        return {**os.environ, **named, **self.settings}


@dataclass(frozen=True)
class _ComponentTranslator(AssetTranslator):
    """The translator of a component, which has the last word."""

    component: KafkaTopics | None = None

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """The component's version."""
        return spec if self.component is None else self.component.get_asset_spec(spec)
