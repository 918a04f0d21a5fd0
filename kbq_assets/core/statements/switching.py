"""Decides when a change of `load` takes effect: after the windows that were committed before it (PROTOCOL S10). Pure
functions.

The first load that sees the change records the positions up to which its topics are committed. Windows below these
positions are loaded as before. The next batch after them is the first one under the change. Until that batch is
recorded, the change can be reverted or replaced by another one, because it has affected no row yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.batches import pending_files
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.statements.load_switch import LoadSwitch
from kbq_assets.core.statements.rules import StatementRule

#: Epoch and position up to which partitions are committed.
Positions: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
_LATER: Final = "kbq load, then replay again"
#: If all records of its topics are bad, no load brings the table's first batch.
_FIRST: Final = (
    f"{_LATER}; if no file of the table waits, read its records again instead: kbq reset --topic T --at earliest, kbq "
    "extract, kbq load"
)


def in_force(state: TableState) -> StatementRule | None:
    """The rule of the table's last batches; None if any rule may come next, because nothing is loaded yet or an earlier
    release, which recorded no changes, loaded it."""
    known = state.definition.statements
    if known.switch is not None:
        return known.switch.after if known.switch.taken else known.switch.before
    if known.appended:
        return StatementRule()
    if known.rule.appends:
        return StatementRule() if state.rows else None
    return None if known.appended is None else known.rule


def is_unruled(state: TableState) -> bool:
    """Whether no batch has set a table's rule yet."""
    return in_force(state) is None and state.definition.statements.rule.appends


def open_switch(state: TableState) -> LoadSwitch | None:
    """The change under which no batch has been loaded yet."""
    switch = state.definition.statements.switch
    return switch if switch is not None and not switch.taken else None


def expected(state: TableState) -> StatementRule:
    """The rule of a table whose topics are no longer selected: that of its open change, or the one in force."""
    switch = open_switch(state)
    return switch.after if switch else in_force(state) or state.definition.statements.rule


def lasting_rule(
    table: TableReference, state: TableState, wanted: Collection[StatementRule]
) -> StatementRule:
    """The rule of both a table's last and next batch. ``wanted`` are the rules of its topics. Raises Refused if the two
    differ."""
    known = state.definition.statements
    now, is_changing = in_force(state) or known.rule, open_switch(state) is not None
    if now.appends and not is_changing and all(rule.appends for rule in wanted):
        return StatementRule()
    if known.converts or is_changing or any(rule != known.rule for rule in wanted):
        raise Refused(
            f"{table}: its next batch will be the first one under its topics' new `load`",
            next_step=_FIRST if is_unruled(state) else _LATER,
        )
    return known.rule


def is_change(state: TableState, asked: StatementRule) -> bool:
    """Whether a table's topics set a `load` that differs from the state's, or from its open change."""
    now, switch = in_force(state), open_switch(state)
    return now is not None and asked.kind != (switch.after if switch else now).kind


def with_change(state: TableState, asked: StatementRule, positions: Positions, now_ms: int) -> TableState:
    """The state that records a change, or that the previous change is reverted."""
    now = in_force(state)
    assert now is not None
    switch = None
    if asked.kind != now.kind:
        at = {f"{tp.topic}/{tp.partition}": found for tp, found in sorted(positions.items())}
        switch = LoadSwitch(_last_rule(state, now), asked, at, now_ms)
    statements = dataclasses.replace(state.definition.statements, switch=switch)
    changed = dataclasses.replace(
        state, definition=dataclasses.replace(state.definition, statements=statements)
    )
    why = str(switch) if switch else f"load={asked.kind} as before: its change is reverted"
    return transitions.note(changed, AuditEntry(now_ms, "load", 0, why))


def committed(files: Iterable[StagedFile], known: Positions, topics: frozenset[str]) -> Positions:
    """The positions of a change: from the topics' commits or, if a commit cannot be read, from its waiting files."""
    found = {tp: at for tp, at in known.items() if tp.topic in topics}
    for file in files:
        tp, end = file.name.topic_partition, (file.name.epoch, file.until)
        if tp not in known:
            found[tp] = max(found.get(tp, end), end)
    return found


def in_turn(state: TableState, files: list[StagedFile], given_up: frozenset[str]) -> list[StagedFile]:
    """The files that the next batch may take. While a change waits, these are the files before it; all if none of those
    is left."""
    if (switch := open_switch(state)) is None:
        return files
    earlier = [file for file in files if switch.is_before(file)]
    return earlier if pending_files(state, (f for f in earlier if f.path not in given_up)) else files


def rule_of_batch(state: TableState, asked: StatementRule, files: Iterable[StagedFile]) -> StatementRule:
    """The rule of a batch of ``files``. Ignores a change that is not recorded yet."""
    now, switch = in_force(state), open_switch(state)
    if now is None or asked.kind == now.kind:
        return asked
    is_recorded = switch is not None and asked.kind == switch.after.kind
    if switch is not None and is_recorded and not any(map(switch.is_before, files)):
        return asked
    return switch.before if switch is not None else _last_rule(state, now)


def waiting_words(state: TableState, pending: Iterable[StagedFile]) -> str:
    """The change that waits and the rows to load before it, as text; "" if none waits."""
    if (switch := open_switch(state)) is None:
        return ""
    earlier = [file for file in pending if switch.is_before(file)]
    if not earlier:
        return f"{switch}; the next batch is the first one"
    rows = sum(file.rows for file in earlier)
    return f"{switch}; to load first: {counted(rows, 'row')} of {counted(len(earlier), 'file')}"


def _last_rule(state: TableState, now: StatementRule) -> StatementRule:
    """The rule in force with its latest options, from the failed statement or from the last one."""
    failed = state.definition.failed
    if failed is not None and failed.statement is not None and failed.statement.rule.kind == now.kind:
        return failed.statement.rule
    known = state.definition.statements.rule
    return known if known.kind == now.kind else now
