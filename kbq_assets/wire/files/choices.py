"""The tables that a window's records choose by their content. The chooser is called once per distinct input."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kbq_assets.wire.chunk import Chunk, Longs
from kbq_assets.wire.files.window import RejectedSchema, Route
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.select import Chooser, Selector, Value
from kbq_assets.wire.records.verdicts import Captures


class TableChoices:
    """Caches the choices of one window's records."""

    def __init__(self, max_tables: int) -> None:
        self._max_tables = max_tables
        self._selectors: dict[tuple[int, str], Selector[Route | RejectedSchema]] = {}
        self._chosen: dict[tuple[str, str], Route] = {}

    def split(
        self, route: Route, schema_id: int, chunk: Chunk, rows: Longs, captures: Captures
    ) -> Iterator[tuple[Route | RejectedSchema, Longs]]:
        """Yield each choice with ascending indexes into ``rows`` of the records that make it."""
        assert route.chooser is not None
        key = (schema_id, route.schema.fingerprint)
        if key not in self._selectors:
            chooser = Chooser(route.chooser.inputs, partial(self._choose, route.chooser))
            self._selectors[key] = Selector(chooser, route.schema.program)
        return self._selectors[key].split(chunk, rows, captures)

    def _choose(
        self, chooser: Chooser[Route | RejectedSchema], values: tuple[Value, ...]
    ) -> Route | RejectedSchema:
        """A choice, with one object per table and schema."""
        choice = chooser.choose(values)
        if isinstance(choice, RejectedSchema):
            return choice
        key = (choice.table, choice.schema.fingerprint)
        if key not in self._chosen:
            tables = {table for table, _ in self._chosen}
            if len(tables | {choice.table}) > self._max_tables:
                return RejectedSchema(
                    Reason.TOO_MANY_TABLES, f"{choice.table}: {Reason.TOO_MANY_TABLES.message}"
                )
            self._chosen[key] = choice
        return self._chosen[key]
