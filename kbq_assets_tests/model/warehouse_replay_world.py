"""The world of the model of replays for two warehouses (R13), what calls change in it, and what must hold."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from kbq_assets_tests.model.engine import Label


class Rule(enum.Enum):
    """What makes replays of several warehouses independent of each other."""

    ONE_WAREHOUSE = "R13: a replay's area has one warehouse, whatever the topic's option says"
    OWN_TABLES = "R13: the tables of the replay's own warehouse wait for its jobs"
    OWN_FILES = "R13: the replay's own warehouse has loaded the files of the range"
    OWN_REPLAYS = "R13: replays of one warehouse exclude each other"
    NO_OTHER_FILES = "R13: no load or parked table of another warehouse delays a promotion"
    NO_OTHER_REPLAYS = "R13: no promotion of another warehouse delays a promotion"
    NO_OTHER_LOADS = "R13: no load of another warehouse waits for a promotion"
    COUNTED_BY_NAME = "R13: commits count a change under the warehouse's name"
    COUNTED_BY_JOB = "R13: commits count a change under its job's id"
    FORMAT = "R13: an older release refuses the replay of a further warehouse"
    ALL_MARKS = "R13: the epoch of the rows follows from the marks of all warehouses"
    ALL_BACKLOGS = "R13: the epoch of the rows follows from files in backlogs, too"
    EPOCH_AGAIN = "R2: once the tables wait, no file of an earlier epoch was loaded since the replay began"
    REGISTERED = "R13: the tables are registered before a promotion names its job"
    LABEL_COMPARED = "R13: a promotion compares the table's label"
    LABEL_SET = "R13: a promotion sets the table's label"
    BROUGHT = "R13: rows that a promotion adds, and that no window gave, count as brought"
    UP_TO_LACKING = "R13: no more rows count as brought than the warehouse lacks"
    TAKEN_BACK = "R13: a rollback takes back what its promotions brought"


Pc = tuple[Any, ...]
IDLE: Pc = ("idle",)
#: The id of a job: staging area, replay, attempt.
JobId = tuple[str, int, int]
NO_JOB: JobId = ("", 0, 0)
BEGINS = {"read": "promoting", "promoted": "rolling"}
ENDS = {"promoting": "promoted", "rolling": "rolled"}
BACK = {"promoting": "refused", "rolling": "promoted"}
#: A replay in one of these phases goes no further by itself. It is *refused* once its tables wait.
LAST = ("promoted", "rolled", "refused")


class Area(NamedTuple):
    """A warehouse and its table's state: rows of the record as (epoch, version), 0 for the version that was loaded;
    the replay that the table waits for with its job and the change; ids of jobs that ran, and that are burned."""

    generation: int = 0
    file: str = "none"
    rows: int = 0
    waits: tuple[int, JobId, int] | None = None
    is_registered: bool = True
    label: str = "own"
    table: tuple[tuple[int, int], ...] = ()
    has_foreign_rows: bool = False
    done: frozenset[JobId] = frozenset()
    burned: frozenset[JobId] = frozenset()
    is_down: bool = False


class Replay(NamedTuple):
    """A replay of the record in one warehouse. ``epoch`` is that of its rows, ``former`` what it replaced."""

    warehouse: int
    generation: int = 0
    phase: str = "new"
    epoch: int = 0
    job: JobId = NO_JOB
    turn: int = 0
    former: tuple[tuple[int, int], ...] = ()


class Change(NamedTuple):
    """What the commit counts of a job in a warehouse: rows, and those of them that no window gave."""

    warehouse: int
    job: JobId
    rows: int
    brought: int


class World(NamedTuple):
    """Everything that exists. Warehouse 0 is the first. Processes are a loader of each warehouse, then an operator of
    each replay."""

    areas: tuple[Area, Area]
    replays: tuple[Replay, ...]
    processes: tuple[Pc, ...]
    epoch: int = 1
    changes: frozenset[Change] = frozenset()
    late: frozenset[Pc] = frozenset()
    crashes: int = 0
    rollbacks: int = 0
    moves: int = 0
    resets: int = 0
    downs: int = 0


Step = tuple[Label, World, bool]


def with_area(world: World, number: int, **changes: Any) -> World:
    """The world with another warehouse."""
    areas = list(world.areas)
    areas[number] = areas[number]._replace(**changes)
    return world._replace(areas=(areas[0], areas[1]))


def with_replay(world: World, number: int, replay: Replay) -> World:
    """The world with another replay."""
    replays = list(world.replays)
    replays[number - 1] = replay
    return world._replace(replays=tuple(replays))


def at(world: World, number: int, pc: Pc) -> World:
    """The world with a process elsewhere."""
    processes = list(world.processes)
    processes[number] = pc
    return world._replace(processes=tuple(processes))


def calls(*found: Pc) -> Pc:
    """Calls that a process makes one after another; it stops at one that changes nothing."""
    chain = IDLE
    for call in reversed(found):
        chain = (call, chain)
    return chain


def applied(world: World, call: Pc) -> World | None:
    """The world after a call; None if it changes nothing."""
    return _CALLS[call[0]](world, *call[1:])


def _loaded(world: World, number: int, generation: int) -> World | None:
    """The world after a load (L2 to L4), which compares and sets the table's label."""
    area = world.areas[number]
    if area.generation != generation or area.is_down or area.label == "other":
        return None
    loaded = {"table": tuple(sorted((*area.table, (1, 0)))), "rows": area.rows + 1, "label": "own"}
    return with_area(world, number, generation=generation + 1, file="loaded", **loaded)


def _swapped(
    world: World, number: int, generation: int, waits: tuple[int, JobId, int] | None, rows: int
) -> World | None:
    """The world after a swap of a table's state."""
    if world.areas[number].generation != generation:
        return None
    return with_area(world, number, generation=generation + 1, waits=waits, rows=rows)


def _moved(world: World, number: int, wanted: Replay, generation: int) -> World | None:
    """The world after a swap of a replay."""
    known = world.replays[number - 1]
    if known.generation != generation:
        return None
    begins = wanted.phase == "rolling" and known.phase == "promoted"
    world = world._replace(rollbacks=world.rollbacks - begins)
    return with_replay(world, number, wanted._replace(generation=generation + 1, former=known.former))


def _registered(world: World, number: int) -> World:
    return with_area(world, number, is_registered=True)


def _labelled(world: World, number: int) -> World | None:
    return None if world.areas[number].label == "other" else with_area(world, number, label="own")


def _burned(world: World, number: int, job: JobId) -> World | None:
    area = world.areas[number]
    return None if job in area.done else with_area(world, number, burned=area.burned | {job})


def _counted(world: World, change: Change) -> World:
    """The world after the commit counts a change, once."""
    key = change.warehouse, change.job
    is_known = any((each.warehouse, each.job) == key for each in world.changes)
    return world if is_known else world._replace(changes=world.changes | {change})


def _inserted(
    world: World, number: int, job: JobId, of: int, kind: str, new: tuple[tuple[int, int], ...]
) -> World | None:
    """The world after the transaction of R4, whose id runs once."""
    area, replay = world.areas[number], world.replays[of - 1]
    if area.is_down or job in area.done | area.burned:
        return None
    old = tuple(row for row in area.table if row[0] == replay.epoch)
    kept = tuple(row for row in area.table if row[0] != replay.epoch)
    if kind == "promoting":
        world = with_replay(world, of, replay._replace(former=old))
    return with_area(world, number, table=tuple(sorted((*kept, *new))), done=area.done | {job})


_CALLS: Final[dict[str, Callable[..., World | None]]] = {
    "load": _loaded,
    "state": _swapped,
    "replay": _moved,
    "register": _registered,
    "label": _labelled,
    "burn": _burned,
    "insert": _inserted,
    "count": _counted,
}


def lacking(world: World, number: int, given: bool, has_row: bool) -> int:
    """Rows that a warehouse was never given, by the commit's counts."""
    return has_row * (not given) - sum(each.brought for each in world.changes if each.warehouse == number)


def broken(world: World, given: tuple[bool, bool], has_row: bool, makes: tuple[bool, ...]) -> Iterator[str]:
    """The promises that a state breaks. ``given``: whether a window gave each warehouse the record, ``has_row``:
    whether extraction made a row of it, ``makes``: whether each replay does."""
    for number, area in enumerate(world.areas):
        own = [(n, each) for n, each in enumerate(world.replays, 1) if each.warehouse == number]
        if len(area.table) > 1:
            yield f"DOUBLED: warehouse {number} has {area.table}"
        if not given[number] and any(epoch != 1 for epoch, _ in area.table):
            yield f"EPOCH: warehouse {number} has {area.table}"
        if area.has_foreign_rows and any(version for _, version in area.table):
            yield f"FOREIGN: two staging areas feed the table in warehouse {number}"
        if len(own) < 2 and not _is_as_promoted(area, own, makes):
            yield f"WRONG: warehouse {number} has {area.table}, its replays are {own}"
        if area.waits is None:
            yield from _miscounted(world, number, area, given[number], has_row)


def _is_as_promoted(area: Area, own: list[tuple[int, Replay]], makes: tuple[bool, ...]) -> bool:
    """Whether the table has the rows of its only replay if that is promoted, and else those that were loaded."""
    found = {version for _, version in area.table}
    if not own or own[0][1].phase in ("new", "reading", "read", "rolled", "refused"):
        return found <= {0}
    [(number, replay)] = own
    return replay.phase != "promoted" or found == ({number} if makes[number - 1] else set())


def _miscounted(world: World, number: int, area: Area, given: bool, has_row: bool) -> Iterator[str]:
    """What a table that does not wait breaks of the counts."""
    rows = len(area.table)
    if area.rows != rows:
        yield f"COUNT: warehouse {number}'s state counts {area.rows} rows of {rows}"
    missing = area.file in ("commit", "backlog", "given up")
    counted = given * has_row + sum(each.rows for each in world.changes if each.warehouse == number)
    if counted != rows + missing:
        yield f"COUNT: the commit counts {counted} rows in warehouse {number}, which has {rows}"
    lacks = lacking(world, number, given, has_row)
    if lacks != (has_row and not given and not rows):
        yield f"BROUGHT: warehouse {number} lacks {lacks} rows by the commit, and has {rows}"
