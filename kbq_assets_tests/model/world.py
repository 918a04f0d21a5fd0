"""The modelled world: its objects, its remote calls, and the bounds of an exploration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from kbq_assets_tests.model.rules import Rule

File = tuple[int, int, int, int, int, int]  # (epoch, first, table, schema id, attempt, until); see `file_*`
Files = tuple[File, ...]
JobId = tuple[str, int, int, int]  # ("job", table, sequence number, uuid)
Job = tuple[JobId, Files, str, Files]  # id, source files (none: a no-op), status, the files it rejected
Op = tuple[Any, ...]  # one remote call: its name, then its arguments
Pc = tuple[Any, ...]  # where a program stands: a step's name, then what the program remembers
DoneFile = tuple[int, int, int, int]  # (table, schema id, first, until)

FIRST_NONCE = 1000  # integers from here on are unique names (attempts, uuids), renamed canonically

EPOCH, FIRST, TABLE, SCHEMA, ATTEMPT, UNTIL = range(6)


class Commit(NamedTuple):
    """The commit of the partition, and (`ended`, only for the promises) where older epochs ended."""

    gen: int
    epoch: int
    next: int
    pending: Files
    given_up: Files
    ended: tuple[int, ...]


class JobEntry(NamedTuple):
    """A batch on its way: the files its job loads, and the rejected ones its record will quarantine."""

    files: Files
    rejected: Files


class TableState(NamedTuple):
    """The load state of one table. `marks`: ((epoch, schema id), until) for each group with a loaded file."""

    gen: int
    uuid: int
    seq: int
    marks: tuple[tuple[tuple[int, int], int], ...]
    entry: JobEntry | tuple[()]
    parked: bool
    quarantined: Files


MISSING: tuple[()] = ()
NEW_TABLE = TableState(0, 0, 0, (), (), False, ())


class Budget(NamedTuple):
    """How many of each fault and of each operator's act are left."""

    crashes: int = 0
    timeouts: int = 0
    transient: int = 0
    rejections: int = 0
    losses: int = 0
    unreadable: int = 0
    parks: int = 0
    resets: int = 0
    give_ups: int = 0


NO_FAULTS = Budget()


class World(NamedTuple):
    """One state of everything. `rows[column][epoch]` are a (table, schema id)'s offsets, as they came."""

    commit: Commit
    tables: tuple[TableState | tuple[()], ...]
    registry: tuple[str, ...]
    backlog: frozenset[File]
    files: frozenset[File]
    done: frozenset[DoneFile]
    done_high: int
    jobs: frozenset[Job]
    rows: tuple[tuple[tuple[int, ...], ...], ...]
    extractors: tuple[Pc, ...]
    loaders: tuple[Pc, ...]
    janitors: tuple[Pc, ...]
    operators: tuple[Pc, ...]
    in_flight: tuple[Op, ...]
    budget: Budget


def _replacing(kind: Any) -> Callable[..., Any]:
    """`namedtuple._replace` in half of its time: an exploration replaces millions of fields."""
    places = {name: place for place, name in enumerate(kind._fields)}

    def replace(self: Any, /, **changes: Any) -> Any:
        items = list(self)
        for name, value in changes.items():
            items[places[name]] = value
        return tuple.__new__(kind, items)

    return replace


for _kind in (Commit, TableState, Budget, World):
    setattr(_kind, "_replace", _replacing(_kind))  # noqa: B010


@dataclass(frozen=True)
class Scope:
    """How far to look: the log, the processes, the faults, and the rules removed.

    `log` has a symbol per offset, such as "a1 b2 -": table a with schema id 1, table b with 2, a gap.
    `window` and `batch` bound the positions of a window and the windows of a batch.
    """

    log: str
    window: int = 1
    batch: int = 2
    extractors: int = 1
    loaders: int = 1
    janitors: int = 0
    budget: Budget = NO_FAULTS
    reset_gives_up: bool = False
    stay_parked: str = ""
    split_reads: bool = False
    with_done: bool = False
    with_registry: bool = False
    removed: frozenset[Rule] = frozenset()

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The tables' names, sorted; everywhere else a table is its index here."""
        return tuple(sorted({word[0] for word in self.log.split() if word != "-"}))

    @cached_property
    def symbols(self) -> tuple[tuple[int, int] | None, ...]:
        """Per offset the record's (table, schema id), or None for a gap."""
        words = self.log.split()
        return tuple(None if w == "-" else (self.tables.index(w[0]), int(w[1:])) for w in words)

    @cached_property
    def columns(self) -> tuple[tuple[int, int], ...]:
        """Every (table, schema id) of the log."""
        return tuple(sorted({s for s in self.symbols if s}))

    @cached_property
    def end(self) -> int:
        """The offset after the last record."""
        return len(self.symbols)

    @cached_property
    def held(self) -> frozenset[int]:
        """The tables that are parked at the start and never resumed."""
        return frozenset(self.tables.index(table) for table in self.stay_parked)

    def keeps(self, rule: Rule) -> bool:
        """Is the rule in force?"""
        return not self.removed or rule not in self.removed

    def offsets(self, file: File) -> Iterator[int]:
        """Yield the offsets of the records in the file."""
        column = (file[TABLE], file[SCHEMA])
        return (o for o in range(file[FIRST], file[UNTIL]) if self.symbols[o] == column)

    def window_files(self, epoch: int, first: int, until: int, attempt: int) -> Files:
        """One file per table and schema id with a record in the window (E8); none for a gap."""
        columns = sorted({s for s in self.symbols[first:until] if s})
        return tuple((epoch, first, table, schema, attempt, until) for table, schema in columns)

    def mark_key(self, file: File) -> tuple[int, int]:
        """The key of the mark that covers the file (E9, L1)."""
        epoch_counts = self.keeps(Rule.MARKS_HAVE_EPOCH) and self.keeps(Rule.RESET_BUMPS_EPOCH)
        return (
            file[EPOCH] if epoch_counts else 0,
            file[SCHEMA] if self.keeps(Rule.MARKS_HAVE_SCHEMA) else 0,
        )

    def covers(self, table: TableState | tuple[()], file: File) -> bool:
        """Do the table's marks cover the file? A missing state covers nothing."""
        if not table:
            return False
        return dict(table.marks).get(self.mark_key(file), 0) >= file[UNTIL]

    def advanced(self, table: TableState, files: Iterable[File]) -> TableState:
        """The state with its marks moved past the files."""
        marks = dict(table.marks)
        for file in files:
            key = self.mark_key(file)
            marks[key] = max(marks.get(key, 0), file[UNTIL])
        return table._replace(marks=tuple(sorted(marks.items())))


def initial_world(scope: Scope) -> World:
    """Nothing read, nothing staged; tables registered beforehand unless the scope looks at that too."""
    tables = [NEW_TABLE._replace(parked=i in scope.held) for i in range(len(scope.tables))]
    return World(
        commit=Commit(0, 0, 0, (), (), ()),
        tables=(MISSING,) * len(tables) if scope.with_registry else tuple(tables),
        registry=("absent" if scope.with_registry else "active",) * len(tables),
        backlog=frozenset(),
        files=frozenset(),
        done=frozenset(),
        done_high=0,
        jobs=frozenset(),
        rows=(((),) * (scope.budget.resets + 1),) * len(scope.columns),
        extractors=(("idle",),) * scope.extractors,
        loaders=(("idle",),) * scope.loaders,
        janitors=(("idle",),) * scope.janitors,
        operators=(("idle",),) * bool(scope.budget.resets or scope.budget.give_ups or scope.budget.parks),
        in_flight=(),
        budget=scope.budget,
    )


def replaced(items: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    """The tuple with one item changed."""
    return (*items[:index], value, *items[index + 1 :])


def apply(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    """Let the remote call take effect: the world after it, and whether its precondition held."""
    return _EFFECTS[op[0]](scope, world, op)


def _put(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    """A plain upload: it overwrites any file with the same path."""
    file = op[1]
    others = world.files if scope.keeps(Rule.ATTEMPT_IN_PATH) else _without_path(world.files, file)
    return world._replace(files=others | {file}), True


def _without_path(files: frozenset[File], file: File) -> frozenset[File]:
    return frozenset(f for f in files if f[:UNTIL] != file[:UNTIL])


def _delete(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    return world._replace(files=_without_path(world.files, op[1])), True


def _swap_commit(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    _, gen, commit = op
    if gen != world.commit.gen and scope.keeps(Rule.COMMIT_PRECONDITION):
        return world, False
    return world._replace(commit=commit._replace(gen=world.commit.gen + 1)), True


def _swap_table(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    _, index, gen, state = op
    held = world.tables[index]
    if not held or (gen != held.gen and scope.keeps(Rule.STATE_PRECONDITION)):
        return world, False
    return world._replace(tables=replaced(world.tables, index, state._replace(gen=held.gen + 1))), True


def _create_table(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    _, index, uuid = op
    if world.tables[index]:
        return world, False
    return world._replace(tables=replaced(world.tables, index, NEW_TABLE._replace(uuid=uuid))), True


def _register(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    """Swap one entry of the registry; entries only go forward, so comparing values is enough."""
    _, index, old, new = op
    if world.registry[index] != old:
        return world, False
    return world._replace(registry=replaced(world.registry, index, new)), True


def _insert(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    """Insert a load job, or with no files a no-op; an id that was ever inserted is refused."""
    _, job_id, files = op
    if any(job[0] == job_id for job in world.jobs):
        return world, False
    return world._replace(jobs=world.jobs | {(job_id, files, "running" if files else "loaded", ())}), True


def _chunk(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    return world._replace(backlog=world.backlog | {op[1]}), True


def _unchunk(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    return world._replace(backlog=world.backlog - {op[1]}), True


def _done(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    return world._replace(done=world.done | {op[1]}, done_high=max(world.done_high, op[1][3])), True


def _undone(scope: Scope, world: World, op: Op) -> tuple[World, bool]:
    return world._replace(done=world.done - {op[1]}), True


_EFFECTS = {
    "put": _put,
    "delete": _delete,
    "swap commit": _swap_commit,
    "swap table": _swap_table,
    "create table": _create_table,
    "register": _register,
    "insert job": _insert,
    "create chunk": _chunk,
    "delete chunk": _unchunk,
    "write done": _done,
    "delete done": _undone,
}
SWAPS = frozenset({"swap commit", "swap table"})
