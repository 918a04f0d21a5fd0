"""The catalog: opens it, finds tables, and translates its errors to KBQ's."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, local
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
from google.auth import exceptions as auth
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier
from sqlalchemy.exc import SQLAlchemyError

from kbq_assets.adapters.iceberg.rest import TimedRestCatalog
from kbq_assets.core.config.redaction import redacted_address
from kbq_assets.core.errors import ConfigurationError, InvalidName, KbqError, Unavailable
from kbq_assets.core.protocol.names import TableReference

#: Schemes to which KBQ writes. Permissions and consistency of other storage are not tested.
_SCHEMES: Final = ("file", "gs")
_FAILED: Final = (
    exceptions.RESTError,
    exceptions.CommitFailedException,
    exceptions.NoSuchTableError,
    exceptions.ValidationError,
    exceptions.ValidationException,
    ValueError,  # damaged metadata
    SQLAlchemyError,
    pa.ArrowException,
    OSError,
    MemoryError,
)
_OWN_PACKAGE: Final = __name__.partition(".")[0]
_DENIED = (exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError)


class IcebergLake:
    """A catalog with its name and properties. It opens on first use."""

    def __init__(self, name: str, properties: Mapping[str, Any]) -> None:
        self.name = name
        self.properties = dict(properties)
        self._lock = Lock()
        self._opened: local | SimpleNamespace = local() if self._is_hive else SimpleNamespace()

    @property
    def _is_hive(self) -> bool:
        kind = str(self.properties.get("type", "")).lower()
        is_inferred = not kind and "py-catalog-impl" not in self.properties
        return kind == "hive" or (is_inferred and str(self.properties.get("uri", "")).startswith("thrift:"))

    @property
    def _is_rest(self) -> bool:
        kind = str(self.properties.get("type", "")).lower()
        is_inferred = not kind and "py-catalog-impl" not in self.properties
        return kind == "rest" or (is_inferred and str(self.properties.get("uri", "")).startswith("http"))

    @property
    def catalog(self) -> Catalog:
        """The catalog. Each thread gets its own if it is Hive's, whose client is not thread-safe."""
        with self._lock:
            if not hasattr(self._opened, "catalog"):
                load = TimedRestCatalog if self._is_rest else _open_hive if self._is_hive else load_catalog
                self._opened.catalog = load(self.name, **self.properties)
            found: Catalog = self._opened.catalog
            return found

    def table(self, table: TableReference) -> Table | None:
        """A table's current state; None if it does not exist. Raises ConfigurationError if KBQ does not support the
        storage of its files."""
        found = self._load(table)
        if found is not None and (scheme := _unsupported_scheme(found)):
            raise ConfigurationError(
                f"the files of {table} are in {scheme}://, which is not built yet",
                next_step="set the catalog's warehouse to a folder or gs://bucket/prefix",
            )
        return found

    def own_table(self, table: TableReference) -> Table | None:
        """A table that KBQ may have written; None if it does not exist, or if its files are in other storage, so that
        it is someone else's."""
        found = self._load(table)
        return None if found is None or _unsupported_scheme(found) else found

    def references(self, namespace: Identifier) -> Iterator[TableReference]:
        """Tables of a namespace with names that KBQ writes; none if the namespace does not exist any more."""
        try:
            identifiers = self.catalog.list_tables(namespace)
        except exceptions.NoSuchNamespaceError:
            return
        for identifier in identifiers:
            try:
                reference = TableReference(*identifier)
            except (InvalidName, TypeError):  # someone's own table, with a name that KBQ never writes
                continue
            yield reference

    def _load(self, table: TableReference) -> Table | None:
        try:
            return self.catalog.load_table((table.dataset, table.table))
        except exceptions.NoSuchTableError:
            return None

    def namespace(self, dataset: str) -> Mapping[str, str] | None:
        """The properties of a dataset; None if it does not exist."""
        try:
            return self.catalog.load_namespace_properties((dataset,))
        except exceptions.NoSuchNamespaceError:
            return None

    def create_namespace(self, dataset: str) -> None:
        """Create a dataset. An existing one stays as it is."""
        try:
            self.catalog.create_namespace((dataset,))
        except exceptions.NamespaceAlreadyExistsError:
            return


def _open_hive(name: str, **properties: Any) -> Catalog:
    from kbq_assets.adapters.iceberg.hive import TimedHiveCatalog  # its package is not always installed

    return TimedHiveCatalog(name, **properties)


def _unsupported_scheme(table: Table) -> str:
    """The scheme of a table's files, if KBQ does not write there; otherwise ""."""
    scheme, separator, _ = table.location().partition("://")
    return scheme if separator and scheme not in _SCHEMES else ""


@contextmanager
def lake_errors(what: str) -> Iterator[None]:
    """Translate errors of the catalog and of files to KBQ's errors."""
    try:
        yield
    except _DENIED as error:
        raise ConfigurationError(
            f"the Iceberg catalog refuses {what}: {shown(error)}",
            next_step="grant the permissions, or correct the catalog's credentials",
        ) from None
    except auth.GoogleAuthError as error:
        message = f"the Iceberg catalog got no access token from Google for {what}: {shown(error)}"
        if isinstance(error, auth.TransportError) or error.retryable:
            raise Unavailable(message, next_step="check the network, then run again") from None
        raise ConfigurationError(
            message, next_step="correct `auth` of the catalog in ~/.pyiceberg.yaml, or the host's credentials"
        ) from None
    except (exceptions.NotInstalledError, ModuleNotFoundError) as error:
        raise ConfigurationError(
            f"the Iceberg catalog needs a package: {shown(error)}", next_step="pip install 'pyiceberg[…]'"
        ) from None
    except _FAILED as error:
        raise _failed(what, error) from None
    except Exception as error:
        if isinstance(error, KbqError) or not _is_of_library(error):
            raise
        raise _failed(what, error) from None


def _is_of_library(error: Exception) -> bool:
    """Whether a library raised the error, not KBQ. For damaged metadata, pyiceberg raises exceptions of many kinds, for
    example EOFError, zlib.error and TypeError. Hive's client, which is not always installed, has its own."""
    if any(base.__name__ == "TException" for base in type(error).__mro__):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not str(frames[-1].f_globals.get("__name__", "")).startswith(_OWN_PACKAGE)


def _failed(what: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"the Iceberg warehouse failed in {what}: {shown(error)}",
        next_step="check the catalog, the warehouse folder and their permissions, then run again",
    )


def shown(error: BaseException) -> str:
    """The first line of an error, without user names and secrets in addresses."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {redacted_address(lines[0])[:500]}"
