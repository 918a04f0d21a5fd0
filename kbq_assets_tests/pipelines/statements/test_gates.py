"""Gates and holds of tables with statements work as for appended tables (PROTOCOL O5, O7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.ordering.decisions import decide
from kbq_assets.pipelines.ordering.orders import order_status
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.wire.chunk import encode_bytes
from kbq_assets_tests.pipelines.bench import TOPIC, A
from kbq_assets_tests.pipelines.statements.kinds import KINDS
from kbq_assets_tests.pipelines.statements.test_kinds import KindBench

BAD = "SELECT n FROM {{ table }} WHERE n = 1"
UPSERT = {"load": "upsert", "key": "id"}
#: The gate does not know what a statement does: these three show it, and `make test-all` the others.
QUICK = {"upsert", "scd2", "sql"}
EACH = pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=kind, marks=() if kind in QUICK else pytest.mark.slow)
        for kind, options in {"upsert": UPSERT, **{kind: found for kind, (found, _) in KINDS.items()}}.items()
    ],
)


def gated(tmp_path: Path, options: dict[str, Any], gate: str) -> KindBench:
    sql = {"gate_sql": BAD} if gate == "sql" else {}
    return KindBench(tmp_path, {**options, "order": "offset", "gate": gate, **sql})


def why(bench: KindBench) -> str:
    parked = bench.table().parked
    return str(parked.reason) if parked else ""


@EACH
def test_a_red_gate_stops_the_next_statement_until_its_rows_are_corrected(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    bench = gated(tmp_path, options, "sql")
    bench.put(0, 1, day=1)
    bench.cycle()
    assert (bench.found(), why(bench)) == ([0], "")
    bench.put(2, 1, day=1)
    bench.cycle()
    assert (bench.found()[-1], why(bench)) == (1, "gate_red")
    bench.put(4, 2, day=1)
    bench.cycle()
    assert 2 not in bench.found()
    with bench.duckdb._writing() as connection:
        connection.execute("DELETE FROM d.A WHERE n = 1")
    bench.store.time_ms += 600_000
    bench.load_all()
    assert (bench.found()[-1], why(bench)) == (2, "")
    assert bench.table().definition.statements.applied == 3
    assert bench.table().order.validated == 3


@pytest.mark.parametrize("options", [UPSERT, KINDS["sql"][0]], ids=["upsert", "sql"])
def test_a_person_goes_on_after_a_statement(tmp_path: Path, options: dict[str, Any]) -> None:
    bench = gated(tmp_path, options, "person")
    for number in (0, 2):
        bench.put(number)
        bench.cycle()
    assert (bench.found(), why(bench)) == ([0], "gate_waits")
    decide(bench.store, A, lambda now: transitions.go_on(now, AuditEntry(0, "", 0, "seen", "me")))
    bench.load_all()
    assert bench.found() == [0, 1]


def test_the_status_names_a_failed_batch_by_the_number_that_a_skip_takes(tmp_path: Path) -> None:
    """An order that begins later counts its batches from 1; the ledger counted some before."""
    bench = KindBench(tmp_path, UPSERT)
    for number in (1, 3):
        bench.put(number)
        bench.cycle()
    schema = bench.registry.schemas[1].replace('"n", "type": "long"', '"n", "type": "string"')
    bench.registry.schemas[2] = schema
    value = b"\x00\x00\x00\x00\x02" + b"\x00\x00" + encode_bytes(b"5")
    bench.kafka.produce(TopicPartition(TOPIC, 1), value, timestamp=0)
    bench.cycle(order="offset")
    found = order_status(read_view(StateCache(bench.store)), A)
    assert found is not None
    assert (found.state, why(bench), found.current) == ("failed", "incompatible_schema", 1)
    entry = AuditEntry(0, "", 0, "given up", "me")
    decide(bench.store, A, lambda now: transitions.skip(now, found.current, entry))
    bench.put(1)
    bench.cycle(order="offset")
    assert bench.found() == [1, 2]


@pytest.mark.parametrize("kind", ["upsert", "scd2"])
def test_tombstones_in_an_order_are_refused(kind: str) -> None:
    options = {"load": kind, "key": "_kafka_key", "keys": True, "tombstones": "row"}
    with pytest.raises(ConfigurationError, match="cannot tell apart"):
        TopicSettings.of(**options, order="offset")
    TopicSettings.of(**options)
