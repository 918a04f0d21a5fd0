"""The ports for applying batches of files."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from kbq_assets.core.config.filebatches import FileBatchSettings
from kbq_assets.core.filebatches.discovery import BACKFILL, LOCK
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE
from kbq_assets.pipelines.filebatches.source_objects import FileSource
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.file_loads import FileJobs, FileLoads
from kbq_assets.ports.object_store import ObjectStore


def new_uuid() -> str:
    """A unique id for a state."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class FilePorts:
    """The ports. ``store`` has the states, ``source`` the batches. ``area`` is the warehouse's name in stored state."""

    settings: FileBatchSettings
    source: FileSource
    store: ObjectStore
    warehouse: FileJobs
    loads: FileLoads
    clock: Clock
    area: str = FIRST_WAREHOUSE
    wait_seconds: float = 600
    poll_seconds: float = 2
    new_uuid: Callable[[], str] = field(default=new_uuid)


def steering_names(settings: FileBatchSettings) -> frozenset[str]:
    """Names of objects that control a table, in any directory. They are never files of a batch."""
    return frozenset(filter(None, (LOCK, BACKFILL, settings.success, settings.start_backfill)))
