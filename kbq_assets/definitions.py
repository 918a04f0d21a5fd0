"""Composition root: reads the environment, opens adapters, and joins the spine with its extras.

No other module reads `os.environ`, and importing this one does not read it either. `kbq` starts at `main`, Dagster at
`defs`. To remove an extra, delete its folder and its lines here and in commands.py.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbq_assets.adapters.clock import SystemClock
from kbq_assets.adapters.staging import staging_client
from kbq_assets.cli import end_quickly, open_closed_streams
from kbq_assets.commands import command_line as command_line  # noqa: PLC0414 - for mypy, a public name
from kbq_assets.core.config.locations import Bucket
from kbq_assets.core.config.roles import Role
from kbq_assets.core.config.settings import Settings, parse_settings

if TYPE_CHECKING:  # `kbq --help` starts here and must not wait for numpy
    import dagster as dg

    from kbq_assets.adapters.google.clients import GoogleClients
    from kbq_assets.core.catalog import CatalogFiles
    from kbq_assets.core.extraction.units import Unit, UnitOutcome
    from kbq_assets.core.protocol.offsets import TopicPartition
    from kbq_assets.defs.translator import AssetTranslator
    from kbq_assets.extras.catalog.apply import CatalogCommands
    from kbq_assets.extras.doctor.cli import Doctor
    from kbq_assets.extras.notices.model import Notifier
    from kbq_assets.extras.notices.send import NoticePorts
    from kbq_assets.extras.reconcile.account import Expected
    from kbq_assets.extras.reconcile.reconciler import Reconciler
    from kbq_assets.pipelines.compaction.compactor import Compactor
    from kbq_assets.pipelines.deployment import Deployment
    from kbq_assets.pipelines.erasure.erasures import Erasures
    from kbq_assets.pipelines.extraction.extractor import Extractor
    from kbq_assets.pipelines.loading.loader import Loader
    from kbq_assets.pipelines.observation.observer import Observer
    from kbq_assets.pipelines.operate.operator import Operator
    from kbq_assets.pipelines.replay.replays import Replays
    from kbq_assets.ports.clock import Clock
    from kbq_assets.ports.engine import ExtractionEngine
    from kbq_assets.ports.kafka import AdvisoryGroups, OffsetReader, RecordSource
    from kbq_assets.ports.object_store import ObjectStore
    from kbq_assets.ports.orchestrator import Orchestrator
    from kbq_assets.ports.registry import SubjectRegistry, WriterSchemas
    from kbq_assets.ports.replay import ReplayTables
    from kbq_assets.ports.topics import TopicAdmin
    from kbq_assets.ports.warehouse import Warehouse
    from kbq_assets.worker.unit import WorkerPorts


@dataclass(eq=False)
class Adapters:
    """Opens each port according to the settings, and imports its SDK only then. ``clients`` replace Google's default
    clients."""

    settings: Settings
    clients: GoogleClients | None = None
    clock: Clock = field(default_factory=SystemClock)

    def store(self) -> ObjectStore:
        """The staging area, with the extraction's credentials."""
        from kbq_assets.worker.adapters import open_store

        return open_store(self.settings, staging_client(self.settings, self.clients, Role.EXTRACT))

    def load_store(self) -> ObjectStore:
        """The staging area, with the loader's credentials."""
        from kbq_assets.worker.adapters import open_load_store

        return open_load_store(self.settings, staging_client(self.settings, self.clients, Role.LOAD))

    def backup(self, area: str, role: Role) -> ObjectStore:
        from kbq_assets.worker.adapters import open_backup_store

        return open_backup_store(self.settings, area, role, staging_client(self.settings, self.clients, role))

    def offsets(self) -> OffsetReader:
        from kbq_assets.adapters.kafka.offsets import KafkaOffsetReader

        return KafkaOffsetReader(self.settings.kafka.bootstrap_servers, self.settings.kafka.options)

    def advisory_groups(self) -> AdvisoryGroups:
        """Consumer groups that show extracted positions to Kafka's tools."""
        from kbq_assets.adapters.kafka.groups import KafkaGroups

        return KafkaGroups(self.settings.kafka.bootstrap_servers, self.settings.kafka.options)

    def source(self) -> RecordSource:
        from kbq_assets.worker.adapters import open_source

        return open_source(self.settings)

    def worker(self) -> WorkerPorts:
        """The ports of an extraction task, for commands that read records the same way."""
        from kbq_assets.worker.task import worker_ports

        return worker_ports(self.settings)

    def warehouse(self) -> Warehouse:
        """BigQuery, DuckDB or Iceberg, with the loader's credentials."""
        from kbq_assets.adapters.warehouses import open_warehouse

        return open_warehouse(self.settings, self.load_store, self.clients)

    def replay_tables(self) -> ReplayTables:
        """The warehouse's operations for replays. Raises ConfigurationError."""
        from kbq_assets.adapters.warehouses import open_replay_tables
        from kbq_assets.worker.engines import open_rewriter

        return open_replay_tables(self.settings, lambda: open_rewriter(self.settings), self.clients)

    def over(self, settings: Settings) -> Adapters:
        """The same adapters over another staging area."""
        adapters = copy.copy(self)
        adapters.settings = settings
        return adapters

    def examine_staging(self, role: Role) -> Iterable[str]:
        """Warnings about the staging area. Raises ConfigurationError if staged data would not be safe."""
        from kbq_assets.adapters.staging import examine

        return examine(self.settings, role, staging_client(self.settings, self.clients, role))

    def engine(self) -> AbstractContextManager[ExtractionEngine]:
        """The engine that runs the tasks of one run."""
        from kbq_assets.worker.engines import open_engine

        return open_engine(self.settings)

    def resident_engines(self) -> AbstractContextManager[Callable[[Settings], ExtractionEngine]]:
        """Engines for successive runs. They share one Spark context, which the first run starts."""
        from kbq_assets.worker.engines import open_resident_engines

        return open_resident_engines(self.settings)

    def catalog(self, folder: Path) -> Callable[[], CatalogFiles]:
        """Reads the files of the topic catalog."""
        from kbq_assets.adapters.catalog_files import CatalogFolder

        return CatalogFolder(folder).read

    def topic_admin(self) -> TopicAdmin:
        """Creates and alters topics."""
        from kbq_assets.adapters.kafka.admin import KafkaTopicAdmin

        return KafkaTopicAdmin(self.settings.kafka.bootstrap_servers, self.settings.kafka.options)

    def registry(self) -> WriterSchemas:
        from kbq_assets.worker.adapters import open_registry

        return open_registry(self.settings)

    def subjects(self) -> SubjectRegistry:
        from kbq_assets.adapters.registry import ConfluentSubjects
        from kbq_assets.worker.adapters import open_registry

        return ConfluentSubjects(open_registry(self.settings))

    def notifiers(self) -> Sequence[Notifier]:
        """The notifiers that KBQ_NOTIFY names."""
        from kbq_assets.extras.notices.senders import open_notifiers

        return open_notifiers(self.settings.extras.notify, self.clock)

    def expected(self) -> Callable[[TopicPartition], Expected | None]:
        """Expected records by partition, from the log of the demo's producers; None for other topics."""
        from kbq_assets.local.demo.log import expected_outcomes

        return expected_outcomes(self.settings.demo_log)

    def orchestrator(self, definitions: Callable[[], dg.Definitions]) -> Orchestrator:
        """Dagster's queue, daemon and UI."""
        from kbq_assets.adapters.settings_file import read_settings
        from kbq_assets.defs.instance.database import DagsterDatabase
        from kbq_assets.defs.instance.orchestrator import DagsterOrchestrator

        home, database = self.settings.home, DagsterDatabase(self.settings.dagster.postgres_url)
        return DagsterOrchestrator(home, read_settings(os.environ), definitions, database=database)


class Parts:
    """The spine and the extras of one deployment. Each part is built when it is first used."""

    def __init__(self, adapters: Adapters) -> None:
        self.adapters = adapters

    def for_warehouse(self, name: str) -> Parts:
        """The same parts for another warehouse: they load, check and repair that one. Raises ConfigurationError."""
        return self.over(self.adapters.settings.for_warehouse(name))

    def over(self, settings: Settings) -> Parts:
        """The same parts under other settings."""
        return type(self)(self.adapters.over(settings))

    @cached_property
    def deployment(self) -> Deployment:
        """Settings, topics and ports."""
        from kbq_assets.pipelines.catalog.source_list import SourceList
        from kbq_assets.pipelines.deployment import Deployment

        adapters = self.adapters
        return Deployment(
            settings=adapters.settings,
            clock=adapters.clock,
            sources=SourceList(adapters.settings, adapters.catalog),
            open_store=adapters.store,
            open_load_store=adapters.load_store,
            open_offsets=adapters.offsets,
            open_warehouse=adapters.warehouse,
            examine_staging=adapters.examine_staging,
            open_backup=adapters.backup,
        )

    @cached_property
    def extractor(self) -> Extractor:
        from kbq_assets.pipelines.extraction.extractor import Extractor

        ports = self.adapters
        return Extractor(self.deployment, ports.engine, ports.advisory_groups, ports.resident_engines)

    @cached_property
    def loader(self) -> Loader:
        from kbq_assets.pipelines.loading.loader import Loader
        from kbq_assets.worker.engines import open_writer

        writer = partial(open_writer, self.deployment.settings)
        return Loader(self.deployment, open_tasks=writer, open_readers=lambda: self.catalog_commands)

    @cached_property
    def compactor(self) -> Compactor:
        """Rewrites a lake's many small files into fewer large ones."""
        from kbq_assets.pipelines.compaction.compactor import Compactor
        from kbq_assets.worker.engines import open_rewriter

        rewriter = partial(open_rewriter, self.deployment.settings)
        return Compactor(self.deployment, rewriter, lambda: self.catalog_commands)

    @cached_property
    def observer(self) -> Observer:
        """Reports status, checks and completeness."""
        from kbq_assets.pipelines.observation.observer import Observer

        observer = Observer(self.deployment, lambda: (self.reconciler.count_check(),))
        if self.deployment.settings.extras.files.location:
            from kbq_assets.extras.filebatches.observe import arrivals

            return replace(observer, arrivals=arrivals(self.deployment, self.adapters.clients))
        return observer

    @cached_property
    def operator(self) -> Operator:
        """Runs an operator's repairs: proposals, bad records and the clean-up."""
        from kbq_assets.pipelines.operate.operator import Operator

        return Operator(self.deployment, self._read_again, self._read_again, self.adapters.registry)

    def _read_again(self, unit: Unit, source: RecordSource | None = None) -> UnitOutcome:
        """Extract a committed unit again in this process, from Kafka unless ``source`` is given."""
        from kbq_assets.worker.unit import extract_unit

        ports = self.adapters.worker()
        return extract_unit(unit, replace(ports, source=source or ports.source), again=True)

    @cached_property
    def replays(self) -> Replays:
        """Replays: ranges that are read again into shadow tables."""
        from kbq_assets.pipelines.replay.replays import Replays

        over, below = self.adapters.over, self.adapters.settings.below
        tables, readers = self.adapters.replay_tables, lambda: self.catalog_commands
        return Replays(self.deployment, lambda folder: over(below(folder)), tables, readers)

    @cached_property
    def erasures(self) -> Erasures:
        """Erasures: deletes the records of persons."""
        from kbq_assets.pipelines.erasure.erasures import Erasures
        from kbq_assets.worker.engines import open_copier

        return Erasures(self, self.adapters.source, lambda: open_copier(self.adapters.settings))

    @cached_property
    def orchestrator(self) -> Orchestrator:
        """Dagster: the queue, the daemon and the UI."""
        return self.adapters.orchestrator(self.definitions)

    @cached_property
    def reconciler(self) -> Reconciler:
        """Accounts for every record between Kafka and the warehouse."""
        from kbq_assets.extras.reconcile.reconciler import Reconciler

        ports = self.adapters
        return Reconciler(self.deployment, ports.source, ports.expected, ports.worker, ports.topic_admin)

    @cached_property
    def catalog_commands(self) -> CatalogCommands:
        """Compares the catalog with the broker and the schema registry."""
        from kbq_assets.extras.catalog.apply import commands_of

        ports, read = self.adapters, self.deployment.sources.catalog
        return commands_of(read, ports.settings, ports.topic_admin, ports.subjects)

    @cached_property
    def notices(self) -> NoticePorts:
        """The sources of notices, and their notifiers."""
        from kbq_assets.extras.notices.open import notice_ports

        return notice_ports(self.deployment, self.observer, self.adapters.notifiers())

    @cached_property
    def doctor(self) -> Doctor:
        """The checks of `kbq doctor`."""
        from kbq_assets.extras.doctor.cli import Doctor
        from kbq_assets.local.stack.health import local_services

        adapters, services = self.adapters, local_services(self.adapters.settings)
        return Doctor(self.deployment, adapters.registry, adapters.subjects, services, self.for_warehouse)

    def with_resources(self, resources: Mapping[str, Any]) -> Parts:
        """The same parts, with Google clients from Dagster's resources."""
        if not isinstance(self.adapters.settings.staging, Bucket):
            return self
        from kbq_assets.defs.google import clients_of

        adapters = copy.copy(self.adapters)
        adapters.clients = clients_of(resources)
        return Parts(adapters)

    def definitions(
        self, translator: AssetTranslator | None = None, resources: Mapping[str, Any] | None = None
    ) -> dg.Definitions:
        """KBQ's Dagster definitions. ``resources`` replace the default ones. Raises ConfigurationError."""
        from kbq_assets.defs.build import default_resources

        opened = default_resources(self.adapters.settings, resources)
        return self.with_resources(opened)._definitions(translator, opened)

    def _definitions(self, translator: AssetTranslator | None, opened: Mapping[str, Any]) -> dg.Definitions:
        import dagster as dg

        from kbq_assets.defs.build import build_definitions
        from kbq_assets.defs.translator import AssetTranslator
        from kbq_assets.extras.filebatches.defs import file_definitions
        from kbq_assets.extras.notices.defs import notice_definitions
        from kbq_assets.extras.reconcile.defs import reconcile_definitions

        translator = translator or AssetTranslator()
        found = dg.Definitions.merge(
            build_definitions(self, translator, opened),
            reconcile_definitions(self.reconciler, translator),
            file_definitions(self.deployment, self.adapters.clients, translator),
        )
        notify = self.deployment.settings.extras.notify
        return dg.Definitions.merge(
            found, notice_definitions(notify, translator, lambda: self.notices, found)
        )


def parts(environ: Mapping[str, str] | None = None) -> Parts:
    """KBQ configured by an environment (by default this process's) and its settings file. Raises ConfigurationError."""
    from kbq_assets.adapters.secrets import use_google
    from kbq_assets.adapters.settings_file import read_with_origins, remembered_ports

    environ, origins = read_with_origins(os.environ if environ is None else environ)
    settings = parse_settings(environ, remembered_ports(environ), origins)
    use_google(settings.google.extract_credentials)
    return Parts(Adapters(settings))


def main() -> None:
    """Run the `kbq` command."""
    open_closed_streams()
    end_quickly()
    command_line()(obj=parts)


def __getattr__(name: str) -> Any:
    """`defs`: the Dagster definitions, built when Dagster loads them."""
    if name == "defs":
        from kbq_assets.defs.events import BATCH_SIZE, BATCH_VARIABLE

        os.environ.setdefault(BATCH_VARIABLE, BATCH_SIZE)
        # Dagster itself passes this argument and warns about it in the daemon's log at every tick of a sensor.
        warnings.filterwarnings("ignore", "Parameter `owners` of initializer `SensorDefinition")
        return parts().definitions()
    raise AttributeError(name)


def __dir__() -> list[str]:
    """Names of the module with `defs`: Dagster's tools look for definitions there."""
    return [*globals(), "defs"]
