"""One view of all table prefixes: their states are read first, then the source, in one listing (PROTOCOL F2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kbq_assets.core.errors import Defect, KbqError, NotFound, TransientError
from kbq_assets.core.filebatches.backlog_views import is_own_lock
from kbq_assets.core.filebatches.config import (
    FileBatchConfig,
    SourceDefaults,
    config_of,
    destination_by,
    is_ordered,
)
from kbq_assets.core.filebatches.discovery import BACKFILL, LOCK, FoundBatch, ListedObject, SourceListing
from kbq_assets.core.filebatches.planning import BatchRules, PendingBatch, PlannedBatch, plan_batches
from kbq_assets.core.filebatches.table_batches import FileTableState
from kbq_assets.pipelines.filebatches.ports import FilePorts
from kbq_assets.pipelines.filebatches.states import FileStates
from kbq_assets.pipelines.protocol.state import Versioned


@dataclass(frozen=True)
class PrefixView:
    """A table prefix: its state (None before its first batch), and the batches that the state does not list as applied.
    ``error``: the error of an unreadable state."""

    prefix: str
    state: Versioned[FileTableState] | None
    applied: Mapping[str, int] = field(default_factory=dict)
    pending: Sequence[PendingBatch] = ()
    configs: Mapping[str, FileBatchConfig] = field(default_factory=dict)
    error: KbqError | None = None

    def found(self, path: str) -> FoundBatch | None:
        return next((each.found for each in self.pending if each.found.path == path), None)


@dataclass(frozen=True)
class FilesView:
    """All table prefixes by name, and the batches whose table is unknown, with the reason."""

    listing: SourceListing
    tables: Mapping[str, PrefixView]
    homeless: Mapping[str, str] = field(default_factory=dict)


def read_files_view(ports: FilePorts, states: FileStates) -> FilesView:
    """Read the states, then the source. Raises Unavailable; MissingState if the registry is gone."""
    found = states.read_all()
    listing = ports.source.listing()
    defaults = SourceDefaults(ports.settings.destination_regex, ports.settings.order_per_table)
    by_prefix: dict[str, list[FoundBatch]] = defaultdict(list)
    homeless: dict[str, str] = {}
    for batch in listing.batches.values():
        try:
            ports.source.check(batch)
            own = destination_by(batch.path, ports.source.success, listing, ports.source.read, defaults)
            by_prefix[own.prefix].append(batch)
        except Exception as error:
            homeless[batch.path] = str(_permanent(error))
    tables = {
        prefix: _table(ports, states, listing, defaults, prefix, found.get(prefix), by_prefix[prefix])
        for prefix in sorted({*by_prefix, *found})
    }
    return FilesView(listing, tables, homeless)


def _table(
    ports: FilePorts,
    states: FileStates,
    listing: SourceListing,
    defaults: SourceDefaults,
    prefix: str,
    state: Versioned[FileTableState] | KbqError | None,
    batches: Sequence[FoundBatch],
) -> PrefixView:
    try:
        if isinstance(state, KbqError):
            raise state
        applied = states.applied(state.value) if state else {}
    except Exception as error:
        return PrefixView(prefix, None, error=_permanent(error))
    wanted = state.value.wanted if state else {}
    configs: dict[str, FileBatchConfig] = {}
    pending = []
    for batch in batches:
        if applied.get(batch.path) == batch.generation and wanted.get(batch.path) != batch.generation:
            continue
        problem = ""
        try:
            own = config_of(batch.path, ports.source.success, listing, ports.source.read, defaults)
            ports.loads.check(own.external if own.sql else own.load, own.sql)
            configs[batch.path] = own
        except Exception as error:
            problem = str(_permanent(error))
        pending.append(PendingBatch(batch, is_ordered(batch.path, listing, defaults), problem))
    return PrefixView(prefix, state, applied, pending, configs)


def _permanent(error: Exception) -> KbqError:
    """The error, as that of one batch or table prefix, which stops no other. Reraises a TransientError: the source or
    the store does not answer."""
    if isinstance(error, TransientError):
        raise error
    return Defect.of(error)


def plan_prefix(
    ports: FilePorts, view: FilesView, table: PrefixView, now: FileTableState
) -> list[PlannedBatch]:
    """The state of each unapplied batch of a table prefix."""
    settings = ports.settings
    held, validates = _held(ports, view, now)
    rules = BatchRules(settings.on_reupload == "apply", settings.on_late == "park", held, validates)
    applied = {**table.applied, **{each.path: each.generation for each in now.applied}}
    return plan_batches(now, applied, table.pending, rules, ports.store.now_ms())


def _held(ports: FilePorts, view: FilesView, now: FileTableState) -> tuple[str, bool]:
    """The reason why ordered batches wait, and whether they wait for an operator's validation."""
    if lock := _foreign_lock(ports, view, now):
        return lock, False
    marker = ports.settings.start_backfill
    if marker and not view.listing.sign(now.prefix, marker):
        return f"there is no {now.prefix}/{marker} yet (KBQ_FILES_START_BACKFILL_FILENAME)", False
    if now.validating and view.listing.sign(now.prefix, BACKFILL) in (0, now.backfill):
        return f"the last batch waits for its validation: a new {now.prefix}/{BACKFILL} is missing", True
    return "", False


def _foreign_lock(ports: FilePorts, view: FilesView, now: FileTableState) -> str:
    path = f"{now.prefix}/{LOCK}"
    if not (generation := view.listing.sign(now.prefix, LOCK)):
        return ""
    try:
        data = ports.source.read(ListedObject(path, 1, generation))
    except NotFound:
        return ""  # it was deleted or replaced: the next view reads it
    return (
        "" if is_own_lock(data, now.uuid) else f"{path} is another program's lock: waits until it is deleted"
    )
