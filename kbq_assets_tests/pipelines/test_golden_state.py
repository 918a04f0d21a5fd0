"""State as the last release wrote it is read, continued, and upgraded in place."""

from __future__ import annotations

import json
from pathlib import Path

from kbq_assets.core.loading.origins import LABEL
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.pipelines.operate.commands import propose_resume_table
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fixtures import golden_state
from kbq_assets_tests.pipelines.bench import A, B, Bench

FORMAT_1 = Path(golden_state.__file__).parent / "state_format_1"


def restored() -> Bench:
    """A world whose warehouse holds what the last release loaded, with that release's staging area."""
    bench = Bench(partitions=2)
    golden_state.first_loads(bench)
    for table in bench.warehouse.stored.values():
        table.labels.clear()  # the last release set no id
    golden_state.last_records(bench)
    bench.store.objects.clear()
    for file in sorted(path for path in FORMAT_1.rglob("*") if path.is_file()):
        bench.store.create(str(file.relative_to(FORMAT_1)), file.read_bytes())
    return bench


def formats(bench: Bench) -> dict[str, int]:
    """The format number of each state object that this world's runs change."""
    paths = [p for prefix in ("commits/", "tables/") for p in bench.paths(prefix)]
    return {path: json.loads(bench.store.get(path).data)["format"] for path in paths}


def test_the_state_of_the_last_release_is_continued_without_loss_or_doubling() -> None:
    bench = restored()
    assert set(formats(bench).values()) == {1}
    assert bench.paths("backlog/")
    assert state.read(bench.store, TableState, table_state_path(B)).value.in_flight is not None
    propose_resume_table(bench.store, A).apply()
    bench.extract()
    bench.load()
    assert sorted(bench.offsets(A)) == [0, 0, 1, 3, 4, 5, 6]
    assert sorted(bench.offsets(B)) == [1, 2, 2, 3]
    assert bench.warehouse.duplicates() == {}
    own = state.table_registry(bench.store).staging_id
    assert bench.warehouse.stored[A].labels[LABEL] == own
    bench.extract()  # prunes the commit
    assert formats(bench) == {
        "commits/_topics.json": 1,  # nothing new to note
        "commits/shop.events.json": 2,
        "tables/_tables.json": 1,
        "tables/d.A.json": 2,
        "tables/d.B.json": 2,
    }


def test_the_golden_state_has_every_kind_of_state_object() -> None:
    now = {path.partition("/")[0] for path in golden_state.staging_area().paths("")} - {"costs"}
    assert {path.name for path in FORMAT_1.iterdir()} == now
    for path, value in golden_state.OTHERS.items():
        assert state.read(restored().store, type(value), path).value == value
