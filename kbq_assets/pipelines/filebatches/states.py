"""States of table prefixes in the store: registered, read, swapped (PROTOCOL F2, F8)."""

from __future__ import annotations

from collections.abc import Callable

from kbq_assets.core.errors import KbqError, MissingState, NotFound, TransientError
from kbq_assets.core.filebatches import table_batches
from kbq_assets.core.filebatches.prefix_registry import (
    PrefixRegistry,
    applied_path,
    decisions_path,
    file_registry_path,
    file_state_path,
)
from kbq_assets.core.filebatches.table_batches import (
    DecisionChunk,
    FileDecision,
    FileTableState,
    SettledChunk,
)
from kbq_assets.core.protocol import codec
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.archives import archived_entries, read_archive, write_archive
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.object_store import ObjectStore


class FileStates:
    """The states of one warehouse's table prefixes. Archives never change, so each is read once."""

    def __init__(self, store: ObjectStore, area: str) -> None:
        self._store = store
        self._area = area
        self._archived: dict[str, dict[str, int]] = {}

    def prefixes(self) -> tuple[str, ...]:
        """The registered table prefixes. Raises MissingState, Unavailable."""
        return tuple(sorted(self._registry().active))

    def read_all(self) -> dict[str, Versioned[FileTableState] | KbqError]:
        """Every registered state, or its error. An unreadable state stops only its own table prefix."""
        return {prefix: self._attempt(prefix) for prefix in self.prefixes()}

    def read(self, prefix: str) -> Versioned[FileTableState]:
        """One state. Raises NotFound if no batch of the prefix was ever entered; MissingState, CorruptState."""
        if prefix not in self._registry().active:
            raise NotFound(
                f"no batch of {prefix} was ever entered", next_step="kbq files status lists the tables"
            )
        found = self._attempt(prefix)
        if isinstance(found, KbqError):
            raise found
        return found

    def register(self, prefix: str, uuid: str) -> Versioned[FileTableState]:
        """Announce, create and activate a state, or return an existing one."""
        path, own = file_registry_path(self._area), file_state_path(prefix, self._area)
        if self._registry() == PrefixRegistry():
            state.create(self._store, path, PrefixRegistry())
        announced = state.change(
            self._store, PrefixRegistry, path, lambda now: now.announce(prefix, uuid)
        ).value
        if prefix not in announced.active:
            state.create(self._store, own, FileTableState(prefix, announced.prefixes[prefix]))
            state.change(self._store, PrefixRegistry, path, lambda now: now.activate(prefix))
        return self.read(prefix)

    def swap(self, old: Versioned[FileTableState], value: FileTableState) -> Versioned[FileTableState]:
        """Replace a state if it has not changed. The oldest entries of a full list are archived first. Raises
        PreconditionFailed, UnknownOutcome: read it again."""
        return state.swap(self._store, old, self._with_room(value))

    def change(self, prefix: str, function: Callable[[FileTableState], FileTableState]) -> None:
        """Apply an operator's change. Errors of ``function`` propagate."""
        path = file_state_path(prefix, self._area)
        state.change(self._store, FileTableState, path, lambda now: self._with_room(function(now)))

    def applied(self, value: FileTableState) -> dict[str, int]:
        """The newest settled generation of each path, including archived ones. Raises MissingState, CorruptState."""
        found: dict[str, int] = {}
        for path in self._archives(value):
            if path not in self._archived:
                chunk = read_archive(self._store, SettledChunk, path)
                self._archived[path] = {each.path: each.generation for each in chunk.batches}
            found |= self._archived[path]
        return found | {each.path: each.generation for each in value.applied}

    def decisions(self, value: FileTableState) -> list[FileDecision]:
        """All decisions about a table prefix, oldest first."""

        def chunk(first: int) -> tuple[FileDecision, ...]:
            path = decisions_path(value.prefix, first, self._area)
            return read_archive(self._store, DecisionChunk, path).decisions

        return [*archived_entries(value.decided, chunk), *value.decisions]

    def _with_room(self, value: FileTableState) -> FileTableState:
        if applied := value.applied_chunk():
            path = applied_path(value.prefix, value.archived, self._area)
            write_archive(self._store, path, SettledChunk(applied))
        if decisions := value.decision_chunk():
            path = decisions_path(value.prefix, value.decided, self._area)
            write_archive(self._store, path, DecisionChunk(decisions))
        return value.without_chunks()

    def _archives(self, value: FileTableState) -> list[str]:
        firsts = range(0, value.archived, table_batches.APPLIED.chunk)
        return [applied_path(value.prefix, first, self._area) for first in firsts]

    def _registry(self) -> PrefixRegistry:
        path = file_registry_path(self._area)
        if (found := state.find(self._store, PrefixRegistry, path)) is not None:
            return found.value
        folder = file_state_path("", self._area).removesuffix(".json")
        if next(iter(self._store.paths(folder)), None) is not None:
            raise MissingState(f"{path} is missing but {folder} is not empty", next_step=codec.RESTORE)
        return PrefixRegistry()

    def _attempt(self, prefix: str) -> Versioned[FileTableState] | KbqError:
        path = file_state_path(prefix, self._area)
        try:
            return state.read(self._store, FileTableState, path)
        except NotFound:
            return MissingState(f"{path} is missing", next_step=codec.RESTORE)
        except TransientError:
            raise
        except KbqError as error:
            return error
