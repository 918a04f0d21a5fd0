"""How the platform's ports are opened: by `definitions.py`, the composition root."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kbq_assets.core.catalog import CatalogFiles
from kbq_assets.core.config.google_permissions import Role
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.notices.port import Notifier
from kbq_assets.extras.reconcile.records import Expected
from kbq_assets.pipelines.catalog.schema_kinds import ProtobufFields
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.ports.kafka import OffsetReader, RecordSource
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.orchestrator import Orchestrator
from kbq_assets.ports.registry import SubjectRegistry
from kbq_assets.ports.topics import TopicAdmin
from kbq_assets.ports.warehouse import Warehouse

if TYPE_CHECKING:
    from kbq_assets.pipelines.platform import Platform


def _no_catalog(folder: Path) -> Callable[[], CatalogFiles]:
    raise ConfigurationError(
        f"no reader of catalogues is set up for {folder}", next_step="name a source list"
    )


def _no_orchestrator(settings: Settings) -> Orchestrator:
    raise ConfigurationError("no queue of jobs is set up", next_step="use `kbq extract` and `kbq load`")


def _no_service(platform: Platform, host: str, port: int, announce: Callable[[str], None]) -> None:
    raise ConfigurationError("no service is set up", next_step="use `kbq status`")


def _no_topic_admin(settings: Settings) -> TopicAdmin:
    raise ConfigurationError("nobody may change topics here", next_step="use `kbq catalog` with a broker")


def _no_protoc(schema: str) -> Iterable[tuple[str, str]]:
    raise ConfigurationError("no compiler is set up", next_step="look at them in the registry")


def _no_subjects(settings: Settings) -> SubjectRegistry:
    raise ConfigurationError("no registry of subjects is set up", next_step="set KBQ_REGISTRY_URL")


@dataclass(frozen=True)
class Openers:
    """How ports are opened. ``engine`` is entered for one run and left after it.

    Extraction and the operator's commands for topics use ``store``; loading, cleaning and the commands for tables
    use ``load_store``, which has the loader's credentials (None: the same store). ``check_staging`` raises
    ConfigurationError where staged data would not be safe, and returns what else is worth a warning.
    """

    store: Callable[[Settings], ObjectStore]
    offsets: Callable[[Settings], OffsetReader]
    source: Callable[[Settings], RecordSource]
    warehouse: Callable[[Settings], Warehouse]
    engine: Callable[[Settings], AbstractContextManager[ExtractionEngine]]
    clock: Clock
    expected: Callable[[Settings], Callable[[TopicPartition], Expected | None]]
    orchestrator: Callable[[Settings], Orchestrator] = _no_orchestrator
    load_store: Callable[[Settings], ObjectStore] | None = None
    check_staging: Callable[[Settings, Role], Iterable[str]] = lambda settings, side: ()
    notifiers: Callable[[Settings], Sequence[Notifier]] = lambda settings: ()
    catalog: Callable[[Path], Callable[[], CatalogFiles]] = _no_catalog
    topic_admin: Callable[[Settings], TopicAdmin] = _no_topic_admin
    service: Callable[[Platform, str, int, Callable[[str], None]], None] = _no_service
    subjects: Callable[[Settings], SubjectRegistry] = _no_subjects
    protobuf_fields: ProtobufFields = _no_protoc
