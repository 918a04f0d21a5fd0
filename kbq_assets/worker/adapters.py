"""Settings to adapters: the ports that driver and workers both need."""

from __future__ import annotations

from pathlib import Path
from urllib.request import url2pathname

from kbq_assets.adapters.kafka.source import KafkaSource
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.adapters.registry import ConfluentSchemaRegistry
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.settings import Settings
from kbq_assets.ports.kafka import Source
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.registry import SchemaRegistry


def open_store(settings: Settings) -> ObjectStore:
    """The object store of `KBQ_STAGING`."""
    url = settings.staging_url
    scheme, separator, rest = url.partition("://")
    if not separator:
        return LocalObjectStore(Path(url))
    if scheme == "file":
        return LocalObjectStore(Path(url2pathname(rest)))
    raise ConfigurationError(
        f"staging at {scheme}:// is not supported", next_step="a folder, or file:///folder"
    )


def open_source(settings: Settings) -> Source:
    """The reader of Kafka records."""
    return KafkaSource(settings.kafka.bootstrap_servers, settings.kafka.options)


def open_registry(settings: Settings) -> SchemaRegistry:
    """The schema registry."""
    registry = settings.registry
    return ConfluentSchemaRegistry(
        registry.url,
        username=registry.username,
        password=registry.password,
        token=registry.token,
        ca_file=registry.ca_file,
        certificate_file=registry.certificate_file,
        key_file=registry.key_file,
        key_password=registry.key_password,
        timeout_seconds=registry.timeout_seconds,
    )
