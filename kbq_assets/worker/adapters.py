"""Opens adapters from settings: the ports that both driver and workers need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, cast

from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.adapters.secrets import resolve
from kbq_assets.core.backup.areas import PERSONAL, area_of
from kbq_assets.core.config.locations import Bucket, Folder
from kbq_assets.core.config.roles import Role
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.personal import Pseudonyms, parse_keys
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.kafka import RecordSource
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.worker.backup_place import BackupPlace

if TYPE_CHECKING:
    from kbq_assets.adapters.gcs.store import GcsObjectStore
    from kbq_assets.adapters.google.clients import StorageClient
    from kbq_assets.adapters.registry import ConfluentSchemaRegistry
    from kbq_assets.wire.files.codec import Codec
    from kbq_assets.wire.privacy.sealing import SealKey


def open_store(settings: Settings, client: StorageClient | None = None) -> ObjectStore:
    """The object store of `KBQ_STAGING` with extraction's credentials, or with ``client``."""
    return _open_store(settings, settings.google.extract_credentials, client)


def open_load_store(settings: Settings, client: StorageClient | None = None) -> ObjectStore:
    """The object store of `KBQ_STAGING` with the credentials of loading and cleaning, or with ``client``."""
    return _open_store(settings, settings.google.load_credentials, client)


def open_store_at(
    settings: Settings, location: str, client: StorageClient | None = None
) -> LocalObjectStore | GcsObjectStore:
    """The object store of another location with loading's credentials, or with ``client``."""
    return _open_store(replace(settings, staging_url=location), settings.google.load_credentials, client)


def open_backup_store(
    settings: Settings, area: str, role: Role = Role.EXTRACT, client: StorageClient | None = None
) -> ObjectStore:
    """The object store of an area of backups with a role's credentials, or with ``client``. Credentials of the place
    itself take precedence over both. Raises ConfigurationError."""
    google, backup = settings.google, settings.backup
    name, location, own = (
        ("KBQ_BACKUP_PERSONAL", backup.personal_location, backup.personal_credentials)
        if area == PERSONAL
        else ("KBQ_BACKUP", backup.location, backup.credentials)
    )
    elsewhere = replace(settings, staging_url=location) if location else settings
    if own and not (location and isinstance(elsewhere.staging, Bucket)):
        raise ConfigurationError(
            f"{name}_CREDENTIALS is set, but {name}_LOCATION does not name a bucket",
            next_step=f"set {name}_LOCATION=gs://bucket/prefix, or unset {name}_CREDENTIALS",
        )
    if backup.storage_class and isinstance(elsewhere.staging, Folder):
        raise ConfigurationError(
            f"KBQ_BACKUP_STORAGE_CLASS={backup.storage_class}: the backup is in a folder, {elsewhere.staging.path}",
            next_step="set KBQ_BACKUP_LOCATION to a bucket, or unset KBQ_BACKUP_STORAGE_CLASS",
        )
    credentials = google.extract_credentials if role is Role.EXTRACT else google.load_credentials
    return _open_store(elsewhere, own or credentials, None if own else client, backup.storage_class)


def _open_store(
    settings: Settings, credentials: str, client: StorageClient | None, storage_class: str = ""
) -> LocalObjectStore | GcsObjectStore:
    place = settings.staging
    if isinstance(place, Folder):
        return LocalObjectStore(place.path)
    from kbq_assets.adapters.gcs import open_gcs_store
    from kbq_assets.adapters.google.auth import GoogleAccess

    access = GoogleAccess(credentials, settings.google.gcs_endpoint, settings.google.kms_key, storage_class)
    return open_gcs_store(settings.staging_url, access, client)


def open_source(settings: Settings) -> RecordSource:
    """The reader of Kafka records."""
    # Imported here because it loads kernels, which commands that read no records do not need.
    from kbq_assets.adapters.kafka.reader import open_reader

    kafka = settings.kafka
    return open_reader(kafka.bootstrap_servers, kafka.options, kafka.reader)


def open_registry(settings: Settings) -> ConfluentSchemaRegistry:
    """The schema registry."""
    from kbq_assets.adapters.registry import ConfluentSchemaRegistry

    return ConfluentSchemaRegistry(settings.registry)


def open_pseudonyms(settings: Settings) -> Pseudonyms | None:
    """The keyed hashes of personal data; None without keys. Raises ConfigurationError."""
    return parse_keys(resolve("KBQ_PII_KEYS", settings.pii.keys)) if settings.pii.keys else None


def open_seal_key(settings: Settings) -> SealKey | None:
    """The public key that seals error rows; None if not set. Raises ConfigurationError."""
    from kbq_assets.wire.privacy.sealing import parse_seal_key  # few topics seal

    reference = settings.pii.seal_key
    return parse_seal_key(resolve("KBQ_PII_SEAL_KEY", reference)) if reference else None


def backup_places(settings: Settings) -> Callable[[TopicSettings], BackupPlace]:
    """A function from a topic's settings to the place of its backup. Each store opens once."""
    codec, level = cast("Codec", settings.backup.codec), settings.backup.level
    opened = cache(lambda area: BackupPlace(open_backup_store(settings, area), codec, level))
    return lambda topic: opened(area_of(topic))
