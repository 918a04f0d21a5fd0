"""Writes `_backlog/` and `_bqlock`, and applies decisions that users make by changing them (PROTOCOL F9)."""

from __future__ import annotations

import contextlib
from functools import partial

from kbq_assets.core.errors import KbqError, NotFound, PreconditionFailed
from kbq_assets.core.filebatches import backlog_views as core
from kbq_assets.core.filebatches import table_batches
from kbq_assets.core.filebatches.discovery import BACKFILL, BACKLOG_FOLDER, LOCK
from kbq_assets.core.filebatches.table_batches import FileDecision, FileTableState
from kbq_assets.pipelines.filebatches.ports import FilePorts
from kbq_assets.pipelines.filebatches.states import FileStates
from kbq_assets.pipelines.filebatches.view import FilesView, PrefixView, plan_prefix

_BY = "_BACKFILL"


class BacklogViews:
    """The views of all table prefixes, if `KBQ_FILES_VIEWS` wants them."""

    def __init__(self, ports: FilePorts, states: FileStates) -> None:
        self._ports = ports
        self._states = states

    def decide(self, view: FilesView) -> bool:
        """Retry or skip failed batches as users decided with objects. Returns whether any state changed."""
        if not self._ports.settings.views:
            return False
        decided = False
        for table in view.tables.values():
            for failed in table.state.value.failed if table.state else ():
                success = self._ports.source.success
                if action := core.decision_of(table.prefix, failed, view.listing, success):
                    self._apply(table, failed.path, action)
                    decided = True
        return decided

    def _apply(self, table: PrefixView, path: str, action: str) -> None:
        entry = FileDecision(self._ports.store.now_ms(), action, path, "by _BACKFILL", _BY)
        found = table.found(path)

        def decided(now: FileTableState) -> FileTableState:
            failed = now.failure_of(path)
            if failed is None:
                return now  # another runner was faster
            if action == "retry":
                return table_batches.retry(now, path, found.generation if found else 0, entry)
            return table_batches.skip(now, path, failed.generation, failed.ordered, entry)

        self._states.change(table.prefix, decided)

    def show(self, view: FilesView) -> dict[str, str]:
        """Bring the views up to date. Returns errors by table prefix; no load depends on the views."""
        problems: dict[str, str] = {}
        for table in view.tables.values() if self._ports.settings.views else ():
            try:
                if table.state is not None:
                    self._show(view, table, table.state.value)
            except KbqError as error:
                problems[table.prefix] = f"_backlog/ and _bqlock are not up to date: {error.message}"
        return problems

    def _show(self, view: FilesView, table: PrefixView, now: FileTableState) -> None:
        source, planned = self._ports.source, plan_prefix(self._ports, view, table, now)
        wanted = {
            core.pointer_path(table.prefix, path, source.success) for path in core.pointers(now, planned)
        }
        folder = f"{table.prefix}/{BACKLOG_FOLDER}/"
        existing = {path for path in view.listing.signs if path.startswith(folder)}
        settled = {core.pointer_path(table.prefix, path, source.success) for path in table.applied} - wanted
        for path in sorted(wanted - existing):
            with contextlib.suppress(PreconditionFailed):
                source.store.create(path, b"")
        for path in sorted(existing & settled):
            source.store.delete(path)
        self._show_lock(table.prefix, now)
        for failed in now.failed:
            if failed.ordered and not failed.retry_at_ms and not failed.shown:
                backfill = view.listing.sign(table.prefix, BACKFILL)
                mark = partial(table_batches.mark_shown, path=failed.path, backfill=backfill)
                self._states.change(table.prefix, mark)

    def _show_lock(self, prefix: str, now: FileTableState) -> None:
        store, path, held = self._ports.source.store, f"{prefix}/{LOCK}", core.holder(now)
        if held is not None and getattr(held, "shown", False):
            return  # deleting it is the user's decision
        wanted = core.lock_text(now, held) if held else b""
        try:
            found = store.get(path)
        except NotFound:
            if wanted:
                with contextlib.suppress(PreconditionFailed):
                    store.create(path, wanted)
            return
        if found.data and not core.is_own_lock(found.data, now.uuid):
            return  # it is not ours
        if not wanted:
            store.delete(path)
        elif found.data != wanted:
            with contextlib.suppress(PreconditionFailed):
                store.swap(path, wanted, found.generation)
