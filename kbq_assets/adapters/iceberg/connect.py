"""Opens the catalog of an address: the embedded one, or one from pyiceberg's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pyiceberg.utils.config import Config
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from kbq_assets.adapters.iceberg.warehouse import IcebergWarehouse
from kbq_assets.core.config.locations import Bucket, LakeAddress
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.wire.arrow.staged import OpenUri

CATALOG_FILE: Final = "catalog.db"
#: Seconds that a commit waits while another process writes to the embedded catalog.
_LOCK_SECONDS: Final = 60
#: PostgreSQL's drivers that use its own library, and how long it waits: 30 s for a connection, two minutes for a host
#: that has gone. Its defaults are forever and two hours.
_LIBPQ: Final = ("postgresql", "postgresql+psycopg2", "postgresql+psycopg")
_LIMITS: Final[Mapping[str, str]] = {
    "connect_timeout": "30",
    "keepalives_idle": "60",
    "keepalives_interval": "10",
    "keepalives_count": "6",
    "tcp_user_timeout": "120000",
}


def open_lake(place: LakeAddress, home: Path, open_uri: OpenUri) -> IcebergWarehouse:
    """The warehouse of an address. Raises ConfigurationError."""
    return IcebergWarehouse(*address(place, home), open_uri=open_uri)


def address(place: LakeAddress, home: Path) -> tuple[str, Mapping[str, Any]]:
    """The name and properties of a catalog. Raises ConfigurationError."""
    return (place.catalog, configured(place.catalog)) if place.catalog else embedded(place, home)


def embedded(place: LakeAddress, home: Path) -> tuple[str, Mapping[str, str]]:
    """The name and properties of the embedded catalog: SQLite in the lake's folder, or in KBQ_HOME for a bucket."""
    if place.folder is not None:
        folder = place.folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return "kbq", _sqlite(folder / CATALOG_FILE, f"file://{folder}")
    assert place.bucket is not None
    home.mkdir(parents=True, exist_ok=True)
    url = _url(place.bucket)
    return quote(url, safe=""), _sqlite(home / f"iceberg-{CATALOG_FILE}", url)


def configured(name: str) -> Mapping[str, Any]:
    """The properties of a catalog in pyiceberg's configuration. `auth` and `ssl` have nested properties. Raises
    ConfigurationError if there is no such catalog."""
    found = Config().get_catalog_config(name)
    if not found:
        raise ConfigurationError(
            f"pyiceberg's configuration has no catalog {name}",
            next_step=f"set PYICEBERG_CATALOG__{name.upper()}__URI, or add it to ~/.pyiceberg.yaml; for a folder, write"
            f" iceberg:./{name}",
        )
    properties = {key: value if isinstance(value, Mapping) else str(value) for key, value in found.items()}
    uri = properties.get("uri")
    return properties | {"uri": _limited(uri)} if isinstance(uri, str) else properties


def _limited(uri: str) -> str:
    """The address of a catalog. PostgreSQL's gets the limits that it does not set."""
    try:
        url = make_url(uri)
    except ArgumentError:  # opening the catalog reports it
        return uri
    if url.drivername not in _LIBPQ:
        return uri
    limited = url.update_query_dict({**_LIMITS, **url.query})
    return limited.render_as_string(hide_password=False)


def _sqlite(path: Path, warehouse: str) -> Mapping[str, str]:
    uri = f"sqlite:///{path.absolute()}?timeout={_LOCK_SECONDS}"
    return {"type": "sql", "uri": uri, "warehouse": warehouse}


def _url(bucket: Bucket) -> str:
    return f"gs://{bucket.name}/{bucket.prefix}".removesuffix("/")
