"""Opens `FileBatches` for a deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbq_assets.adapters.filebatches.connect import open_file_loads, with_every_name
from kbq_assets.core.config.locations import parse_staging
from kbq_assets.core.config.roles import Role
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.filebatches.ports import FilePorts, steering_names
from kbq_assets.pipelines.filebatches.runner import FileBatches
from kbq_assets.pipelines.filebatches.source_objects import FileSource
from kbq_assets.worker.adapters import open_store_at

if TYPE_CHECKING:
    from kbq_assets.adapters.google.clients import GoogleClients


def open_file_batches(deployment: Deployment, clients: GoogleClients | None = None) -> FileBatches:
    """The batches of files in `KBQ_FILES`. ``clients`` replace Google's default clients. Raises ConfigurationError if
    KBQ_FILES is not set, or is the staging area."""
    settings = deployment.settings
    own = settings.extras.files
    if not own.location:
        raise ConfigurationError("KBQ_FILES is not set", next_step="docs/file-batches.md")
    if parse_staging(own.location) == settings.staging:
        raise ConfigurationError(
            "KBQ_FILES is the staging area", next_step="use another folder or prefix for batches of files"
        )
    client = clients.storage(Role.LOAD) if clients else None
    source = with_every_name(open_store_at(settings, own.location, client))
    return FileBatches(
        FilePorts(
            own,
            FileSource(source, own.success, steering_names(own)),
            deployment.open_load_store(),
            deployment.warehouse,
            open_file_loads(settings, source, clients),
            deployment.clock,
            settings.warehouse_area,
            settings.run.load_wait_seconds,
            settings.run.poll_seconds,
        )
    )
