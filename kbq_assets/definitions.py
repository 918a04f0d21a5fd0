"""Composition root: reads the environment, opens adapters, joins them to pipelines, CLI and Dagster.

The only module that reads `os.environ`, and only when something is asked of it: importing it reads nothing.
`kbq` starts at `main`; Dagster loads `defs` (see workspace.yaml).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbq_assets.core.config.google_permissions import Role
from kbq_assets.core.config.locations import Bucket, DuckDbFile, Folder
from kbq_assets.core.config.settings import Settings, parse_settings
from kbq_assets.core.errors import ConfigurationError

if TYPE_CHECKING:  # `kbq --help` starts here and must not wait for numpy
    from kbq_assets.core.catalog import CatalogFiles
    from kbq_assets.core.protocol.offsets import TopicPartition
    from kbq_assets.extras.notices.port import Notifier
    from kbq_assets.extras.reconcile.records import Expected
    from kbq_assets.pipelines.platform import Platform
    from kbq_assets.ports.engine import ExtractionEngine
    from kbq_assets.ports.kafka import OffsetReader
    from kbq_assets.ports.orchestrator import Orchestrator
    from kbq_assets.ports.registry import SubjectRegistry
    from kbq_assets.ports.topics import TopicAdmin
    from kbq_assets.ports.warehouse import Warehouse


def platform(environ: Mapping[str, str] | None = None) -> Platform:
    """The platform of an environment, by default this process's. Raises ConfigurationError."""
    from kbq_assets.adapters.clock import SystemClock
    from kbq_assets.adapters.secrets import use_google
    from kbq_assets.pipelines.openers import Openers
    from kbq_assets.pipelines.platform import Platform
    from kbq_assets.worker.adapters import open_load_store, open_source, open_store

    settings = parse_settings(os.environ if environ is None else environ)
    use_google(settings.google.extract_credentials)
    openers = Openers(
        store=open_store,
        offsets=_open_offsets,
        source=open_source,
        warehouse=_open_warehouse,
        engine=_open_engine,
        clock=SystemClock(),
        expected=_open_expected,
        orchestrator=_open_orchestrator,
        load_store=open_load_store,
        check_staging=_check_staging,
        notifiers=_open_notifiers,
        catalog=_open_catalog,
        protobuf_fields=_protobuf_fields,
        topic_admin=_open_topic_admin,
        service=_serve,
        subjects=_open_subjects,
    )
    return Platform(settings, openers)


def main() -> None:
    """The `kbq` command."""
    from kbq_assets.cli import kbq

    kbq(obj=platform)


def __getattr__(name: str) -> Any:
    """`defs`, Dagster's definitions, built when Dagster asks for them."""
    if name == "defs":
        from kbq_assets.defs import build_definitions
        from kbq_assets.defs.events import BATCH_SIZE, BATCH_VARIABLE

        os.environ.setdefault(BATCH_VARIABLE, BATCH_SIZE)
        # Dagster warns of an argument that it gives itself, into the daemon's log at every look at a sensor.
        warnings.filterwarnings("ignore", "Parameter `owners` of initializer `SensorDefinition")
        return build_definitions(platform())
    raise AttributeError(name)


def __dir__() -> list[str]:
    """Dagster's tools look for definitions among a module's names."""
    return [*globals(), "defs"]


def _open_offsets(settings: Settings) -> OffsetReader:
    from kbq_assets.adapters.kafka.offsets import KafkaOffsetReader

    return KafkaOffsetReader(settings.kafka.bootstrap_servers, settings.kafka.options)


def _open_warehouse(settings: Settings) -> Warehouse:
    place = settings.warehouse
    if isinstance(place, DuckDbFile):
        return _open_duckdb(place.path, settings)
    from kbq_assets.adapters.bigquery import open_bigquery
    from kbq_assets.adapters.google.auth import GoogleAccess

    google = settings.google
    return open_bigquery(
        settings.warehouse_url, GoogleAccess(google.load_credentials, google.bigquery_endpoint)
    )


def _open_duckdb(path: Path, settings: Settings) -> Warehouse:
    from kbq_assets.adapters.duckdb import DuckDbWarehouse

    if isinstance(settings.staging, Folder):
        return DuckDbWarehouse(path)
    from kbq_assets.worker.adapters import open_load_store

    store, root = open_load_store(settings), settings.staging_url.removesuffix("/") + "/"
    return DuckDbWarehouse(path, open_uri=lambda uri: store.open_read(uri.removeprefix(root)))


def _check_staging(settings: Settings, side: Role) -> tuple[str, ...]:
    place = settings.staging
    if not isinstance(place, Bucket):
        return ()
    from kbq_assets.adapters.gcs import check_bucket
    from kbq_assets.adapters.google.auth import GoogleAccess
    from kbq_assets.adapters.google.clients import storage_client

    google = settings.google
    credentials = google.extract_credentials if side is Role.EXTRACT else google.load_credentials
    client = storage_client(GoogleAccess(credentials, google.gcs_endpoint))
    report = check_bucket(client, place.name, place.prefix)
    if report.problems:
        raise ConfigurationError(
            f"gs://{place.name} is not safe for staging: {'; '.join(report.problems)}",
            next_step="mend the bucket, then see `kbq doctor --gcp`",
        )
    return tuple(f"gs://{place.name}: {warning}" for warning in report.warnings)


def _open_notifiers(settings: Settings) -> Sequence[Notifier]:
    from kbq_assets.adapters.clock import SystemClock
    from kbq_assets.extras.notices.senders import open_notifiers

    return open_notifiers(settings.notify, SystemClock())


@contextmanager
def _open_engine(settings: Settings) -> Iterator[ExtractionEngine]:
    from kbq_assets.adapters.spark.engine import SparkEngine
    from kbq_assets.adapters.spark.session import spark_context
    from kbq_assets.worker import daemon
    from kbq_assets.worker.task import UnitTask

    task = UnitTask(settings)
    with spark_context(settings.spark, settings.home, daemon.MODULE) as context:
        yield SparkEngine(context, task)


def _open_catalog(folder: Path) -> Callable[[], CatalogFiles]:
    from kbq_assets.adapters.catalog_files import CatalogFolder

    return CatalogFolder(folder).read


def _protobuf_fields(schema: str) -> Iterable[tuple[str, str]]:
    from kbq_assets.adapters.protobuf import fields_of

    return fields_of(schema)


def _open_topic_admin(settings: Settings) -> TopicAdmin:
    from kbq_assets.adapters.kafka.admin import KafkaTopicAdmin

    return KafkaTopicAdmin(settings.kafka.bootstrap_servers, settings.kafka.options)


def _open_subjects(settings: Settings) -> SubjectRegistry:
    from kbq_assets.adapters.registry import ConfluentSubjects
    from kbq_assets.worker.adapters import open_registry

    return ConfluentSubjects(open_registry(settings))


def _serve(platform: Platform, host: str, port: int, announce: Callable[[str], None]) -> None:
    from kbq_assets.extras.metrics.reporters import open_reporter
    from kbq_assets.extras.metrics.service.server import serve

    serve(platform, host, port, announce, open_reporter)


def _open_expected(settings: Settings) -> Callable[[TopicPartition], Expected | None]:
    from kbq_assets.local.demo.log import expected_outcomes

    return expected_outcomes(settings.demo_log)


def _open_orchestrator(settings: Settings) -> Orchestrator:
    from kbq_assets.defs import build_definitions
    from kbq_assets.defs.instance.database import DagsterDatabase
    from kbq_assets.defs.instance.orchestrator import DagsterOrchestrator

    return DagsterOrchestrator(
        settings.home,
        os.environ,
        lambda: build_definitions(platform()),
        database=DagsterDatabase(settings.dagster.postgres_url),
    )
