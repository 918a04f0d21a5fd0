"""Tables of a lake, and BigQuery's tables that read them."""

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
        """The metadata file of each table in these datasets, or of ``only`` some, as a URI. Omits KBQ's own tables and
        those of other programs. Raises ConfigurationError, Unavailable."""


class ExternalTables(Protocol):
    """Guarantees: `point` never replaces a table, and keeps grants and policies of one that exists."""

    def known(self, table: ExternalTable) -> KnownTable | None:
        """BigQuery's table of this name. Raises ConfigurationError, Unavailable."""

    def point(self, change: PointAtMetadata) -> None:
        """Create the table, or let it read the newest file. Raises ConfigurationError, NotFound if its dataset is
        missing, PreconditionFailed if somebody else changed or moved the table meanwhile, Unavailable."""


class MovesReaders(Protocol):
    """Lets readers follow a lake after it changed."""

    def move_readers(
        self, changed: Collection[TableReference], is_late: Callable[[], bool]
    ) -> Mapping[TableReference, str]:
        """Let tables that exist read the newest files of these tables of the lake; begin with none once ``is_late``.
        Returns why some are behind. Raises ConfigurationError."""
