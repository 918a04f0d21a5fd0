"""A backup, a merge of its files, a replay from it, its promotion, rollback and acceptance, killed by -9:
`python -m kbq_assets_tests.crashes.replays_killed FOLDER NTH [upserts|lake]`.

Every run is a process, forked from this one, over a folder and a DuckDB file, or a lake; Kafka and the registry are in
memory. The first run lists its points; each later one is killed at one, and two more runs end what it left. Prints the
number of points, and what went wrong. Offsets 1 to 6 went to `sales`, and the source list says `orders` now. Of
upserts, records without a value were skipped, and delete their keys now.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.adapters.duckdb.replay import DuckDbReplayTables
from kbq_assets.adapters.iceberg import IcebergWarehouse
from kbq_assets.adapters.iceberg.connect import embedded
from kbq_assets.adapters.iceberg.lake import IcebergLake
from kbq_assets.adapters.iceberg.replay import LakeReplayTables
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.backup import merging
from kbq_assets.core.backup.areas import REGULAR
from kbq_assets.core.backup.backup_names import BACKUP as NAMES
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.replay.model import BACKUP, Phase
from kbq_assets.core.replay.positions import Position
from kbq_assets.definitions import Parts
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.backup.clean import clean_backups
from kbq_assets.pipelines.backup.merge import merge_topic
from kbq_assets.pipelines.backup.verify import verify_topic
from kbq_assets.pipelines.replay.replays import Replays
from kbq_assets.ports.replay import ReplayTables
from kbq_assets.ports.warehouse import Warehouse
from kbq_assets.wire.warm import warm_up
from kbq_assets_tests.contracts.erasure import no_tasks
from kbq_assets_tests.crashes.probes import Point, Probe, ProbedPort, in_child, probe_duckdb
from kbq_assets_tests.fakes.platform import GOOD, SOURCES, TOPIC, FakePlatform


class Case(NamedTuple):
    """What the source list said of the range, and says now; whether records have keys, and some no value; whether the
    warehouse is a lake."""

    wrong: str
    right: str
    is_keyed: bool = False
    is_lake: bool = False


_UPSERT: Final = "table=orders load=upsert key=_kafka_key keys=true tombstones="
CASES: Final = {
    "appends": Case("table=sales", "table=orders"),
    "lake": Case("table=sales", "table=orders", is_lake=True),
    "upserts": Case(f"{_UPSERT}skip", f"{_UPSERT}row", is_keyed=True),
}
_ENVIRON: Final = {"KBQ_WINDOW_RECORDS": "3"}
_BEFORE, _SINCE = 8, 4
#: The range that is replayed, `orders` in the end.
_FIRST, _UNTIL = 1, 7
_FAILURES_SHOWN: Final = 5


class Home(FakePlatform):
    """The platform over a folder. A topic of one partition has ``records``."""

    def __init__(self, folder: Path, case: Case, records: int, probe: Probe | None = None) -> None:
        folder.mkdir(exist_ok=True)
        options = case.wrong if probe is None and records == _BEFORE else case.right
        sources = SOURCES.replace("table=orders", f"{options} backup=true")
        super().__init__(folder, sources=sources, partitions=1, environ=_ENVIRON)
        if records and not case.is_keyed:
            self.produce(records)
        for n in range(records if case.is_keyed else 0):
            value = None if n in _DELETIONS else GOOD
            self.kafka.produce(TopicPartition(TOPIC, 0), value, key=key_of(n), timestamp=1000)
        self.kafka.chunk_records = 2
        self.path, self.is_lake = folder / "warehouse.duckdb", case.is_lake
        self.lake = embedded(LakeAddress(folder / "lake"), folder)
        store: Any = LocalObjectStore(folder / "staging")
        self.store = ProbedPort(store, "store", probe) if probe else store  # type: ignore[assignment]
        if probe is not None:
            probe_duckdb(probe)
            if case.is_lake:
                probe_lake(probe)

    def opened(self) -> Parts:
        """Parts over the files."""
        return self.reopened(warehouse=self._warehouse, replay_tables=self._replay_tables)

    def _warehouse(self) -> Warehouse:
        return IcebergWarehouse(*self.lake) if self.is_lake else DuckDbWarehouse(self.path)

    def _replay_tables(self) -> ReplayTables:
        if self.is_lake:
            return LakeReplayTables(IcebergLake(*self.lake), no_tasks)
        return DuckDbReplayTables(self.path)

    def cycle(self, *, waits: bool = False) -> Parts:
        """Extract, with the backup, and load. A table may wait for a promotion that died."""
        parts = self.opened()
        parts.extractor.extract()
        loaded = parts.loader.load()
        assert waits or [t.message for t in loaded.tables if t.message] == []
        return parts

    def rows(self) -> dict[str, list[int]]:
        """The offsets of each table."""
        if self.is_lake:
            catalog = IcebergLake(*self.lake).catalog
            tables = {name: catalog.load_table(("shop", name)) for _, name in catalog.list_tables("shop")}
            return {
                name: sorted(table.scan().to_arrow()["_kafka_offset"].to_pylist())
                for name, table in sorted(tables.items())
                if name not in _OTHERS
            }
        with DuckDbWarehouse(self.path).connect_readonly() as connection:
            names = connection.execute("SELECT table_name FROM duckdb_tables WHERE schema_name = 'shop'")
            return {
                name: [row[0] for row in connection.execute(_ROWS.format(name)).fetchall()]
                for (name,) in sorted(names.fetchall())
                if name not in _OTHERS
            }


def probe_lake(probe: Probe) -> None:
    """Make every change of a lake's catalog and files a point, in this process."""
    for owner, name in _LAKE_CALLS:
        setattr(owner, name, _probed(probe, name, getattr(owner, name)))


def _probed(probe: Probe, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: probe.around(f"lake {name}", partial(call, *args, **options))


#: Every change of a lake: its catalog, and its files.
_LAKE_CALLS: Final = (
    *((SqlCatalog, name) for name in ("commit_table", "create_table", "drop_table")),
    *((PyArrowFileIO, name) for name in ("new_output", "delete")),
)


def key_of(offset: int) -> bytes:
    """The record's key. Each earlier key has two records, each later key has one."""
    return b"k%d" % (offset % 4 if offset < _BEFORE else offset)


#: Offsets of records without a value: one is its key's last of the range.
_DELETIONS: Final = (2, 5, 9)
_OTHERS: Final = ("_kbq_completeness", "_kbq_ledger_orders", "_kbq_deleted_orders")
_ROWS: Final = "SELECT _kafka_offset FROM shop.{} ORDER BY 1"


def drive(replays: Replays) -> None:
    """Read, promote, roll back, promote and accept the one replay, from wherever it is."""
    if not replays.list():
        ends = Position(offset=_FIRST), Position(offset=_UNTIL)
        replays.propose(TOPIC, *ends, BACKUP)[1].apply()
    while replays.find(1).phase != Phase.ACCEPTED:
        advance(replays, 1)
    replays.propose_accept(1).apply()  # again: a death may have left tables


def advance(replays: Replays, number: int) -> None:
    """The next step of a replay that is promoted, rolled back, promoted and accepted."""
    now = replays.find(number)
    match Phase(now.phase):
        case Phase.READING:
            assert replays.read(number).is_done
        case Phase.PROMOTING | Phase.ROLLING_BACK:
            replays.continue_(number)
        case Phase.PROMOTED if now.attempt == 1:
            replays.propose_rollback(number).apply()
        case Phase.PROMOTED:
            replays.propose_accept(number).apply()
        case _:
            replays.propose_promotion(number).apply()


def merge(parts: Parts) -> BackupArea:
    """Small files of the backup become one; what it left is cleaned up."""
    area = parts.deployment.backup_area(REGULAR)
    with patch.object(merging, "LEAST_FILES", 2), patch.object(merging, "SMALL_BYTES", 1 << 40):
        merge_topic(area, TOPIC, lambda: uuid.uuid4().hex[:20])
    clean_backups(area, 0, replaced_ms=0)
    return area


def prepare(home: Path, case: Case) -> None:
    """Rows of the former source list are loaded."""
    Home(home, case, _BEFORE).cycle()


def run(home: Path, point: Point | None, case: Case) -> None:
    """Extract new records and repair the old ones; die at a point."""
    probe = Probe(point, signal.SIGKILL)
    parts = Home(home, case, _BEFORE + _SINCE, probe).cycle()
    merge(parts)
    drive(parts.replays)
    (home / "points.json").write_text(json.dumps(probe.passed))


def expected(case: Case) -> dict[str, list[int]]:
    """The offsets of each table in the end."""
    whole = range(_BEFORE + _SINCE)
    if not case.is_keyed:
        moved = [offset for offset in whole if _FIRST <= offset < _UNTIL or offset >= _BEFORE]
        return {"orders": moved, "sales": [o for o in whole if o not in moved]}
    last = {key_of(offset): offset for offset in whole}
    return {"orders": sorted(offset for offset in last.values() if offset not in _DELETIONS)}


def check(home: Path, case: Case) -> None:
    """Every record is in its table once, in the backup once, and nothing is left over."""
    for waits in (True, False):
        platform = Home(home, case, _BEFORE + _SINCE)
        parts = platform.cycle(waits=waits)
        drive(parts.replays)
    found = platform.rows()
    assert found == expected(case), found
    assert parts.reconciler.reconcile(values="all").findings == ()
    area = merge(parts)
    verified = verify_topic(area, TOPIC)
    assert (verified.damages, verified.records) == ((), _BEFORE + _SINCE), verified
    left = [entry.path for entry in area.list(f"{NAMES}{TOPIC}/")]
    assert verified.files == len(left) == 1, left


def copy(fresh: Path, home: Path) -> None:
    """Begin again. An object's generation is its file's time."""
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(fresh, home, copy_function=shutil.copy2)


class Campaign(NamedTuple):
    """What happens in a home: before the run that is killed, in that run, and after it."""

    prepare: Callable[[Path], None]
    run: Callable[[Path, Point | None], None]
    check: Callable[[Path], None]


def begin(folder: Path, of: Campaign) -> tuple[Path, Path]:
    """A prepared home to copy, and the place of its copies."""
    warm_up()
    # Always the same folder: a lake knows its files by their whole paths.
    fresh, home = folder / "fresh", folder / "home"
    assert in_child(lambda: of.prepare(home)) == 0
    home.rename(fresh)
    return fresh, home


def main(folder: Path, nth: int, of: Campaign) -> int:
    """Kill a run at every nth point."""
    fresh, home = begin(folder, of)
    copy(fresh, home)
    assert in_child(lambda: of.run(home, None)) == 0
    assert in_child(lambda: of.check(home)) == 0
    passed: dict[str, int] = json.loads((home / "points.json").read_text())
    points = [Point(kind, number + 1) for kind, count in sorted(passed.items()) for number in range(count)]
    return kill_at(fresh, home, points[::nth], len(points), of)


def kill_at(fresh: Path, home: Path, points: Sequence[Point], total: int, of: Campaign) -> int:
    """Kill a run at these points of ``total``."""
    failed: list[str] = []
    for point in points:
        copy(fresh, home)
        killed = in_child(partial(of.run, home, point))
        if killed != -signal.SIGKILL or in_child(partial(of.check, home)) != 0:
            failed.append(f"{point}: ended with {killed}")
        if len(failed) == _FAILURES_SHOWN:
            break
    about = Counter(point.kind.split(",")[0] for point in points)
    print(json.dumps({"points": total, "killed": len(points), "of": about, "failed": failed}))
    return bool(failed)


if __name__ == "__main__":
    chosen = CASES[(*sys.argv, "appends")[3]]
    campaign = Campaign(*(partial(function, case=chosen) for function in (prepare, run, check)))
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), campaign))
