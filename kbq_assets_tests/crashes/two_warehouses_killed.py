"""Replays, or replays of error rows, in each of two warehouses, a DuckDB file and a lake, killed by -9:
`python -m kbq_assets_tests.crashes.two_warehouses_killed FOLDER NTH [replays|promotions|errors]`. With `few` instead
of NTH, only at the worst points of promotions.

The processes are those of replays_killed.py. After each death, the warehouse in which nothing was being replaced has
its rows and loads new ones, and the same commands finish the interrupted work in each warehouse.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.replay.model import AREAS, KAFKA, Phase, Replay, is_shadow
from kbq_assets.core.replay.positions import Position
from kbq_assets.definitions import Parts
from kbq_assets.pipelines.errors_replay.reparse import Selection, replay_errors
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.replay.replays import Replays
from kbq_assets_tests.crashes.probes import Point, Probe, ProbedPort, probe_duckdb
from kbq_assets_tests.crashes.replays_killed import Campaign, advance, begin, kill_at, main, probe_lake
from kbq_assets_tests.fakes.platform import GOOD, POISON, TOPIC, FakePlatform

NAMES: Final = ("local", "lake")
#: Records that were loaded before the run that dies, those that it loads, and those that come after it.
_BEFORE, _SINCE, _AFTER = 8, 4, 2
_KILLED: Final = _BEFORE + _SINCE
_WHOLE: Final = _KILLED + _AFTER
#: The range that is replayed, `orders` in the end.
_FIRST, _UNTIL = 1, 7
_MOVED: Final = frozenset(range(_FIRST, _UNTIL))
Rows = dict[str, list[int]]


class Home(FakePlatform):
    """The platform over a folder, whose topic of one partition has ``values``, and whose rows go to ``table``."""

    def __init__(self, folder: Path, table: str, values: Iterable[bytes], probe: Probe | None = None) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(
            folder,
            sources=f"{TOPIC} dataset=shop table={table} warehouses={','.join(NAMES)} error_share=1\n",
            partitions=1,
            environ={
                "KBQ_WINDOW_RECORDS": "3",
                "KBQ_WAREHOUSE": f"local=duckdb:{folder / 'warehouse.duckdb'},lake=iceberg:{folder / 'lake'}",
            },
        )
        for value in values:
            self.kafka.produce(TopicPartition(TOPIC, 0), value, key=b"k", timestamp=1000)
        self.kafka.chunk_records = 2
        self.folder = folder
        store: Any = LocalObjectStore(folder / "staging")
        self.store = ProbedPort(store, "store", probe) if probe else store  # type: ignore[assignment]
        if probe is not None:
            probe_duckdb(probe)
            probe_lake(probe)

    def opened(self) -> dict[str, Parts]:
        """Parts by warehouse, each opened as the settings say."""
        parts = self.reopened()
        del parts.adapters.warehouse
        del parts.adapters.replay_tables
        return {name: parts.for_warehouse(name) for name in NAMES}

    def cycle(self, may_wait: Iterable[str] = ()) -> dict[str, Parts]:
        """Extract, and load each warehouse. Tables of those in ``may_wait`` may wait for what died there."""
        parts = self.opened()
        parts[NAMES[0]].extractor.extract()
        for name in NAMES:
            loaded = parts[name].loader.load()
            waiting = [table.message for table in loaded.tables if table.message]
            assert name in may_wait or waiting == [], (name, waiting)
        return parts

    def rows(self, name: str) -> Rows:
        """The offsets in each of a warehouse's tables."""
        warehouse = self.opened()[name].adapters.warehouse()
        return {
            table.table: sorted(
                offset
                for range_ in warehouse.kafka_ranges(table)
                for offset, rows in warehouse.positions(table, range_).items()
                for _ in range(rows)
            )
            for table in sorted(warehouse.tables())
            if not is_shadow(table) and table.table not in _OTHERS
        }


_OTHERS: Final = ("_kbq_completeness",)


def own_replay(replays: Replays) -> Replay | None:
    """The replay of this warehouse."""
    area = replays.live.settings.warehouse_area
    return next((each for each in replays.list() if each.warehouse == area), None)


# Replays ----------------------------------------------------------------------------------------------------------


def drive(home: Home, until: Phase) -> None:
    """Read, promote, roll back, promote and accept a replay in each warehouse, by turns, from wherever they are up to a
    phase."""
    opened = {name: parts.replays for name, parts in home.opened().items()}
    going = list(NAMES)
    while going:
        for name in tuple(going):
            replays = opened[name]
            found = own_replay(replays)
            if found is None:
                ends = Position(offset=_FIRST), Position(offset=_UNTIL)
                replays.propose(TOPIC, *ends, KAFKA)[1].apply()
            elif found.phase == until:
                going.remove(name)
            else:
                advance(replays, found.number)
    for replays in opened.values() if until == Phase.ACCEPTED else ():
        if found := own_replay(replays):
            replays.propose_accept(found.number).apply()  # again: a death may have left tables


def routed(home: Path, table: str, records: int, probe: Probe | None = None) -> Home:
    """A platform whose records are all good."""
    return Home(home, table, [GOOD] * records, probe)


def prepare_replays(folder: Path, until: Phase) -> None:
    """Rows of the former source list are loaded into both; if only promotions are killed, both replays are read."""
    routed(folder, "sales", _BEFORE).cycle()
    if until == Phase.PROMOTED:
        drive(routed(folder, "orders", _BEFORE), Phase.READ)


def run_replays(folder: Path, point: Point | None, until: Phase) -> None:
    """Load new records into both, and repair the old rows of both; die at a point."""
    probe = Probe(point, signal.SIGKILL)
    home = routed(folder, "orders", _KILLED, probe)
    home.cycle()
    drive(home, until)
    (folder / "points.json").write_text(json.dumps(probe.passed))


def expected(records: int, *, is_moved: bool) -> Rows:
    """The offsets of each table before or after a promotion."""
    orders = [o for o in range(records) if o >= _BEFORE or (is_moved and o in _MOVED)]
    sales = [o for o in range(_BEFORE) if not (is_moved and o in _MOVED)]
    return {table: rows for table, rows in (("orders", orders), ("sales", sales)) if rows}


def check_replays(folder: Path, until: Phase) -> None:
    """Whatever died in one warehouse, the other has its rows and gets new ones. In the end each record is in its
    table once in both, and nothing is left over."""
    home = routed(folder, "orders", _WHOLE)
    phases = {name: found.phase if found else "" for name, found in _replays(home).items()}
    dead = [name for name, phase in phases.items() if phase in (Phase.PROMOTING, Phase.ROLLING_BACK)]
    others = [name for name in NAMES if dead and name not in dead]
    for name in others:
        _is_untouched(home, name, _KILLED, phases[name])
    home.cycle(may_wait=dead or NAMES)  # a table may wait too for a replacement that has ended
    for name in others:
        _is_untouched(home, name, _WHOLE, phases[name])
    drive(home, until)
    parts = home.cycle()
    for name in NAMES:
        assert home.rows(name) == expected(_WHOLE, is_moved=True), (name, home.rows(name))
    _is_reconciled(parts)
    if until == Phase.ACCEPTED:
        _is_clean(home)


def _replays(home: Home) -> dict[str, Replay | None]:
    return {name: own_replay(parts.replays) for name, parts in home.opened().items()}


def _is_untouched(home: Home, name: str, records: int, phase: str) -> None:
    """Whether a warehouse has the rows of its own replay's phase, and none of its tables waits."""
    is_moved = phase in (Phase.PROMOTED, Phase.ACCEPTED)
    assert home.rows(name) == expected(records, is_moved=is_moved), (name, phase, home.rows(name))
    store = home.opened()[name].deployment.load_store
    states = state.read_table_states(store)
    assert states
    assert [table for table, found in states.items() if found.value.definition.replacing is not None] == []


def _is_clean(home: Home) -> None:
    """Neither a shadow, nor a copy of former rows, nor a staged file of a replay is left."""
    for parts in home.opened().values():
        tables = parts.adapters.warehouse().tables()
        assert [t for t in tables if is_shadow(t)] == []
    assert [entry.path for entry in home.store.list(AREAS)] == []


def _is_reconciled(parts: dict[str, Parts]) -> None:
    for name, own in parts.items():
        found = own.reconciler.reconcile(values="all")
        assert (found.findings, found.accounted) == ((), True), (name, found)
        assert (own.reconciler.counts().findings, found.totals()["errors"]) == ((), 0)


# Replays of error rows --------------------------------------------------------------------------------------------


def mixed(home: Path, table: str, records: int, probe: Probe | None = None) -> Home:
    """A platform in which every other record is not a Confluent value. Each process routes rows to its own table, so
    that duplicates are visible."""
    return Home(home, table, [POISON if n % 2 else GOOD for n in range(records)], probe)


def mend(parts: dict[str, Parts], doing: Path) -> None:
    """Replay all error rows of each warehouse, and note which one's."""
    for name, own in parts.items():
        doing.write_text(name)
        replay_errors(own.operator.rejected.replay_ports, Selection(repair=lambda row: GOOD))


def prepare_errors(folder: Path) -> None:
    """Some records are rows, some error rows, in both."""
    mixed(folder, "first", _BEFORE).cycle()


def run_errors(folder: Path, point: Point | None) -> None:
    """Load new records, and replay all error rows of both; die at a point."""
    probe = Probe(point, signal.SIGKILL)
    mend(mixed(folder, "second", _KILLED, probe).cycle(), folder / "doing")
    (folder / "points.json").write_text(json.dumps(probe.passed))


def check_errors(folder: Path) -> None:
    """Whatever died in one warehouse, the other has its rows and gets new ones. In the end each record is a row once
    in both, and no error row waits."""
    home, doing = mixed(folder, "third", _WHOLE), folder / "doing"
    name = doing.read_text() if doing.exists() else ""
    died_in = name if not (folder / "points.json").exists() else ""
    other = next((each for each in NAMES if died_in and each != died_in), "")
    good, bad = (frozenset(range(n, _WHOLE, 2)) for n in (0, 1))
    if other:  # the first warehouse was done before the second one began
        rows = [*good, *bad] if other == NAMES[0] else [*good]
        _has(home, other, [offset for offset in rows if offset < _KILLED])
    home.cycle(may_wait=(died_in,))
    if other:
        _has(home, other, [o for o in range(_WHOLE) if o in good or (other == NAMES[0] and o < _KILLED)])
    for _ in range(2):
        parts = home.cycle()
        mend(parts, doing)
    for name in NAMES:
        _has(home, name, range(_WHOLE))
        assert home.rows(name).get("kbq_errors", []) == []
    _is_reconciled(parts)


def _has(home: Home, name: str, offsets: Iterable[int]) -> None:
    """The tables of a warehouse have these records as rows, each once."""
    found = home.rows(name)
    own = sorted(offset for table, rows in found.items() if table != "kbq_errors" for offset in rows)
    assert own == sorted(offsets), (name, found)


def replays(until: Phase) -> Campaign:
    """Replays of both warehouses up to a phase."""
    return Campaign(*(partial(each, until=until) for each in (prepare_replays, run_replays, check_replays)))


#: A promotion of the DuckDB file is done, and nothing knows it; one table of the lake is replaced, and the other not.
WORST: Final = (Point("duckdb COMMIT, after", 5), Point("lake commit_table, after", 6))
SCENES: Final = {
    "replays": replays(Phase.ACCEPTED),
    "promotions": replays(Phase.PROMOTED),
    "errors": Campaign(prepare_errors, run_errors, check_errors),
}

if __name__ == "__main__":
    if sys.argv[2] == "few":
        of = SCENES["promotions"]
        sys.exit(kill_at(*begin(Path(sys.argv[1]), of), WORST, len(WORST), of))
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), SCENES[(*sys.argv, "replays")[3]]))
