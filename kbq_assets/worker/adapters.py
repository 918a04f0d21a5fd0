"""Settings to adapters: the ports that driver and workers both need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.adapters.registry import ConfluentSchemaRegistry
from kbq_assets.adapters.secrets import resolve
from kbq_assets.core.config.locations import Folder
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.topics.personal import Pseudonyms, parse_keys
from kbq_assets.ports.kafka import RecordSource
from kbq_assets.ports.object_store import ObjectStore

if TYPE_CHECKING:
    from kbq_assets.adapters.google.clients import StorageClient
    from kbq_assets.wire.privacy.sealing import SealKey


def open_store(settings: Settings, client: StorageClient | None = None) -> ObjectStore:
    """The object store of `KBQ_STAGING`, as extraction sees it; ``client``: by that client instead."""
    return _open_store(settings, settings.google.extract_credentials, client)


def open_load_store(settings: Settings, client: StorageClient | None = None) -> ObjectStore:
    """The object store of `KBQ_STAGING`, as loading and cleaning see it; ``client``: by that client instead."""
    return _open_store(settings, settings.google.load_credentials, client)


def _open_store(settings: Settings, credentials: str, client: StorageClient | None) -> ObjectStore:
    place = settings.staging
    if isinstance(place, Folder):
        return LocalObjectStore(place.path)
    from kbq_assets.adapters.gcs import open_gcs_store
    from kbq_assets.adapters.google.auth import GoogleAccess

    access = GoogleAccess(credentials, settings.google.gcs_endpoint, settings.google.kms_key)
    return open_gcs_store(settings.staging_url, access, client)


def open_source(settings: Settings) -> RecordSource:
    """The reader of Kafka records."""
    # It loads kernels: not for commands that read no record.
    from kbq_assets.adapters.kafka.reader import open_reader

    kafka = settings.kafka
    return open_reader(kafka.bootstrap_servers, kafka.options, kafka.reader)


def open_registry(settings: Settings) -> ConfluentSchemaRegistry:
    """The schema registry."""
    return ConfluentSchemaRegistry(settings.registry)


def open_pseudonyms(settings: Settings) -> Pseudonyms | None:
    """The keyed hashes of personal data, None without keys. Raises ConfigurationError."""
    return parse_keys(resolve("KBQ_PII_KEYS", settings.pii.keys)) if settings.pii.keys else None


def open_seal_key(settings: Settings) -> SealKey | None:
    """The public key that seals error rows, None without one. Raises ConfigurationError."""
    from kbq_assets.wire.privacy.sealing import parse_seal_key  # few topics seal

    reference = settings.pii.seal_key
    return parse_seal_key(resolve("KBQ_PII_SEAL_KEY", reference)) if reference else None
