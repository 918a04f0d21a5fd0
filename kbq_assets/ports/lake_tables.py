"""Tables of a lake, and the BigQuery tables that read them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from kbq_assets.core.catalog.lake_tables import ExternalTable, KnownTable, PointAtMetadata
from kbq_assets.core.protocol.names import TableReference


class LakeMetadata(Protocol):
    """The newest metadata files of a lake."""

    def files(
        self, datasets: Collection[str], only: Collection[TableReference] | None = None
    ) -> Mapping[TableReference, str]:
        """The URI of the metadata file of each table in these datasets, or of the tables in ``only``. Omits KBQ's own
        tables and those of other programs. Raises ConfigurationError, Unavailable."""


class ExternalTables(Protocol):
    """Guarantees: `point` never replaces a table, and an existing table keeps its grants and policies."""

    def known(self, table: ExternalTable) -> KnownTable | None:
        """The BigQuery table with this name. Raises ConfigurationError, Unavailable."""

    def point(self, change: PointAtMetadata) -> None:
        """Create the table, or point it to the newest file. Raises ConfigurationError, NotFound if its dataset is
        missing, PreconditionFailed if another process changed or moved the table meanwhile, Unavailable."""


class MovesReaders(Protocol):
    """Updates the tables that read a lake after the lake changed."""

    def move_readers(
        self, changed: Collection[TableReference], is_late: Callable[[], bool]
    ) -> Mapping[TableReference, str]:
        """Point existing tables to the newest files of the ``changed`` tables of the lake. Starts no further table once
        ``is_late``. Returns the reason for each table that is behind. Raises ConfigurationError."""
