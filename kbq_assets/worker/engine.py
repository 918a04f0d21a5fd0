"""Spark for one command of `kbq`, without Dagster: to import it takes longer than a small run reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kbq_assets.adapters.spark.engine import SparkEngine
from kbq_assets.adapters.spark.session import spark_context
from kbq_assets.core.config.settings import Settings
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.worker import daemon
from kbq_assets.worker.task import UnitTask


@contextmanager
def open_engine(settings: Settings) -> Iterator[ExtractionEngine]:
    """Spark, for one run."""
    with spark_context(settings.spark, settings.home, daemon.MODULE) as started:
        yield SparkEngine(started, UnitTask(settings))
