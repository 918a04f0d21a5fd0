"""Change events of Debezium, from Kafka to DuckDB: the table equals the source database's table."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.core.debezium.change_columns import PLACEHOLDER
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.table_options import table_options
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, LoadReport, load
from kbq_assets.pipelines.operate.commands import propose_resume_table
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.statements.skip import propose_skip
from kbq_assets_tests.pipelines.bench import TOPIC, TP, A, Bench
from kbq_assets_tests.worker.debezium.events import (
    CREATE,
    DELETE,
    ENVELOPE_ID,
    KEY_ID,
    TRUNCATE,
    UPDATE,
    avro_envelope,
    encoded,
)

KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
COLUMNS = {"id": "int", "name": ["null", "string"], "tags": ["null", {"type": "array", "items": "string"}]}
WIDER_ID, WIDER = ENVELOPE_ID + 9, {**COLUMNS, "note": ["null", "string"]}
OPTIONS: dict[str, Any] = {
    "dataset": "d",
    "table": "A",
    "format": "debezium",
    "load": "upsert",
    "order": "offset",
    "key": "_key.id",
    "key_format": "avro",
    "tombstones": "skip",
}
Row = dict[str, Any]


class Database:
    """The database table, and the topic of its changes; a DuckDB warehouse. ``written`` are the database's own names
    of columns."""

    #: The warehouse's columns.
    name, tags = "name", "tags"

    def __init__(
        self, path: Path, *, records: int = 3, written: Mapping[str, str] = {}, **changes: Any
    ) -> None:
        self.options = {**OPTIONS, **changes}
        self.written = written
        self.bench = Bench(TopicSettings.of(**self.options), WindowLimits(records=records))
        schemas = {KEY_ID: KEY, ENVELOPE_ID: self._envelope(COLUMNS), WIDER_ID: self._envelope(WIDER)}
        self.bench.registry.schemas = {number: json.dumps(each) for number, each in schemas.items()}
        store = self.bench.store
        self.duckdb = DuckDbWarehouse(
            path / "w.duckdb", open_uri=lambda uri: store.open_read(store.path_of(uri))
        )
        self.rows: dict[int, Row] = {}
        #: the last values of rows that were deleted
        self.gone: dict[int, Row] = {}

    def put(self, key: int, *, unavailable: str = "", wider: bool = False, **values: Any) -> None:
        """Insert or update a row. The database does not send the ``unavailable`` column of an update."""
        row = {**self.rows.get(key, dict.fromkeys(COLUMNS)), "id": key, **values}
        event = UPDATE if key in self.rows else CREATE
        self.rows[key] = row
        self.gone.pop(key, None)
        sent = {**row, "note": row.get("note")} if wider else row
        if unavailable and event is UPDATE:
            sent = {**sent, unavailable: [PLACEHOLDER] if unavailable == "tags" else PLACEHOLDER}
        self._send(key, {**event, "before": None, "after": sent}, wider=wider)

    def delete(self, key: int, *, says_row: bool = True) -> None:
        """Delete a row; its tombstone follows."""
        row = self.gone[key] = self.rows.pop(key)
        self._send(key, {**DELETE, "before": row if says_row else None})
        self.bench.kafka.produce(TP, None, key=encoded(KEY, {"id": key}, KEY_ID), timestamp=1000)

    def truncate(self) -> None:
        self.gone |= self.rows
        self.rows.clear()
        value = encoded(self._envelope(COLUMNS), {**TRUNCATE, "after": None})
        self.bench.kafka.produce(TP, value, timestamp=1000)

    def _send(self, key: int, event: Any, *, wider: bool = False) -> None:
        columns, schema_id = (WIDER, WIDER_ID) if wider else (COLUMNS, ENVELOPE_ID)
        parts = {part: self._named(event[part]) for part in ("before", "after") if event.get(part)}
        value = encoded(self._envelope(columns), {**event, **parts}, schema_id)
        self.bench.kafka.produce(TP, value, key=encoded(KEY, {"id": key}, KEY_ID), timestamp=1000)

    def _envelope(self, columns: Mapping[str, Any]) -> Any:
        return avro_envelope(self._named(columns))

    def _named(self, row: Mapping[str, Any]) -> Row:
        return {self.written.get(name, name): value for name, value in row.items()}

    def cycle(self, **changes: Any) -> LoadReport:
        """Extract and load, with some options changed."""
        settings = self.bench.settings = TopicSettings.of(**{**self.options, **changes})
        assert self.bench.extract().stops == ()
        ports = LoadPorts(self.bench.store, self.duckdb, self.bench.clock)
        known = {TOPIC: settings}
        options = LoadOptions(
            lambda table, topics: table_options(table, topics, known), topics=lambda topics: known
        )
        return load(ports, options)

    def shown(self, where: str = "TRUE") -> dict[int, Row]:
        with self.duckdb.connect_readonly() as connection:
            found = connection.execute(
                f"SELECT _key.id, id, {self.name}, {self.tags} FROM d.A WHERE {where}"
            ).fetchall()
        rows = {key: {"id": id_, "name": name, "tags": tags or None} for key, id_, name, tags in found}
        assert len(rows) == len(found)
        return rows

    @property
    def expected(self) -> dict[int, Row]:
        return self._as_shown(self.rows)

    @property
    def expected_marked(self) -> dict[int, Row]:
        return self._as_shown(self.gone)

    @staticmethod
    def _as_shown(rows: Mapping[int, Row]) -> dict[int, Row]:
        return {
            key: {"id": key, "name": row["name"], "tags": row["tags"] or None} for key, row in rows.items()
        }

    def table(self) -> TableState:
        return state.read(self.bench.store, TableState, table_state_path(A)).value


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("deletes", ["remove", "mark"])
def test_any_changes_in_any_batches_show_what_the_database_has(
    tmp_path: Path, seed: int, deletes: str
) -> None:
    """Rows that stay have the last values that the database had."""
    chance, database = random.Random(seed), Database(tmp_path, records=4, deletes=deletes)
    for _ in range(3):
        for number in range(12):
            key = chance.randrange(5)
            if key in database.rows and chance.random() < 0.25:
                database.delete(key, says_row=chance.random() < 0.5)
            elif chance.random() < 0.06:
                database.truncate()
            else:
                lost = chance.choice(["", "", "name", "tags"])
                changed = {"name": f"n{number}", "tags": [f"t{number}"]}
                changed = {name: v for name, v in changed.items() if name != lost or key not in database.rows}
                database.put(key, unavailable=lost, wider=chance.random() < 0.4, **changed)
        database.cycle()
        if deletes == "mark":
            assert database.shown("NOT _kbq_deleted") == database.expected
            assert database.shown("_kbq_deleted") == database.expected_marked
        else:
            assert database.shown() == database.expected


def test_a_value_that_was_not_sent_is_the_last_one_known(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.put(1, name="a", tags=["x"])
    database.cycle()
    database.put(1, unavailable="name", tags=["y"])  # of the table
    database.put(2, name="b", tags=["x"])
    database.put(2, unavailable="tags", name="c")  # of the same batch
    database.put(1, unavailable="name", tags=["z"])
    database.cycle()
    assert database.shown() == {
        1: {"id": 1, "name": "a", "tags": ["z"]},
        2: {"id": 2, "name": "c", "tags": ["x"]},
    }


def test_a_value_that_was_not_sent_is_found_under_the_column_s_name_in_snake_case(tmp_path: Path) -> None:
    database = Database(
        tmp_path, written={"name": "fullName", "tags": "eventDate"}, column_names="snake_case"
    )
    database.name, database.tags = "full_name", '"eventDate"'  # event_date is KBQ's own
    database.put(1, name="a", tags=["x"])
    database.cycle()
    database.put(1, unavailable="name", tags=["y"])
    database.cycle()
    assert database.shown() == database.expected == {1: {"id": 1, "name": "a", "tags": ["y"]}}
    database.put(1, unavailable="tags", name="b")
    database.cycle()
    assert database.shown() == database.expected == {1: {"id": 1, "name": "b", "tags": ["y"]}}


def test_a_value_that_was_not_sent_stays_in_the_variant_of_its_column(tmp_path: Path) -> None:
    """The database made a number a text; the table has both columns, and a change names the first."""
    database = Database(tmp_path, on_incompatible="variant_column")
    number = {"id": "int", "name": ["null", "int"]}
    database.bench.registry.schemas[ENVELOPE_ID] = json.dumps(avro_envelope(number))
    key = encoded(KEY, {"id": 1}, KEY_ID)
    first = {**CREATE, "after": {"id": 1, "name": 5}}
    database.bench.kafka.produce(TP, encoded(avro_envelope(number), first), key=key, timestamp=1000)
    database.cycle()
    database.rows[1] = {"id": 1, "name": None, "tags": None}
    database.put(1, wider=True, name="five", tags=["x"])
    database.cycle()
    database.put(1, wider=True, unavailable="name", tags=["y"])
    database.cycle()
    database.name = "name__string"
    assert database.shown() == {1: {"id": 1, "name": "five", "tags": ["y"]}}


def test_a_value_of_null_is_no_value_that_was_not_sent(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.put(1, name="a", tags=["x"])
    database.cycle()
    database.put(1, name=None)
    database.put(1, unavailable="name", tags=["y"])
    database.cycle()
    assert database.shown()[1]["name"] is None


def test_a_deletion_without_the_old_row_deletes_by_the_key_and_a_changed_key_moves_the_row(
    tmp_path: Path,
) -> None:
    database = Database(tmp_path)
    database.put(1, name="a")
    database.put(2, name="b")
    database.cycle()
    database.delete(1, says_row=False)
    database.delete(2)
    database.put(3, name="b")
    database.cycle()
    assert database.shown() == database.expected == {3: {"id": 3, "name": "b", "tags": None}}


def test_a_truncation_removes_what_came_before_and_keeps_what_came_after(tmp_path: Path) -> None:
    database = Database(tmp_path, records=50)
    database.put(1, name="old")
    database.cycle()
    database.put(2, name="older than the truncation")
    database.truncate()
    database.put(1, name="new")
    database.cycle()
    assert database.shown() == database.expected == {1: {"id": 1, "name": "new", "tags": None}}


def test_deleted_and_truncated_rows_may_stay_marked(tmp_path: Path) -> None:
    database = Database(tmp_path, deletes="mark")
    database.put(1, name="a")
    database.put(2, name="b")
    database.cycle()
    database.delete(1)
    database.cycle()
    assert database.shown("_kbq_deleted AND __op = 'd'") == {1: {"id": 1, "name": "a", "tags": None}}
    database.truncate()
    database.cycle()
    assert database.shown("NOT _kbq_deleted") == {}
    assert set(database.shown()) == {1, 2}


@pytest.mark.parametrize("first", ["append", "upsert"])
def test_appended_changes_do_not_become_last_states_in_place(tmp_path: Path, first: str) -> None:
    database, appended = Database(tmp_path), {"load": "append", "key": ""}
    before: list[dict[str, str]] = [{}] if first == "upsert" else []
    for changes in (*before, appended, appended):
        database.put(1, name="a")
        database.cycle(**changes)
    database.put(1, name="b")
    database.cycle()  # records the change
    database.put(1, name="c")
    [report] = database.cycle().tables
    assert (report.state, "cannot become last states in place" in report.message) == ("parked", True)
    propose_resume_table(database.bench.store, A).apply()
    database.cycle(**appended)  # takes it back
    assert database.table().in_flight is None
    with database.duckdb.connect_readonly() as connection:
        names = [
            name for (name,) in connection.execute("SELECT name FROM d.A ORDER BY _kafka_offset").fetchall()
        ]
    assert names[-2:] == ["b", "c"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"order": "none"}, "in order"),
        ({"key": "id"}, "only the Kafka key always identifies the deleted row"),
        ({"tombstones": "row"}, "the event before a tombstone already deletes the row"),
        ({"format": "avro", "tombstones": "row"}, "a batch would mix tombstones with other records"),
    ],
)
def test_options_that_would_show_another_state_are_refused(changes: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        TopicSettings.of(**{**OPTIONS, **changes})


def test_a_deletion_is_recognized_whatever_documents_without_a_change_have(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"key": "_kafka_key", "keys": True, "key_format": "bytes"}
    database = Database(tmp_path, **keys)
    origin = {"connector": "postgresql", "table": "A"}
    other = {"__op": "c", "__deleted": "false", "id": 0}
    created, deleted = ({"op": op, "source": origin, "before": {"id": 1}, "after": {"id": 1}} for op in "cd")
    for key, document in ((b"other", other), (b"1", created), (b"1", deleted)):
        database.bench.kafka.produce(TP, json.dumps(document).encode(), key=key, timestamp=1000)
        database.cycle()
    with database.duckdb.connect_readonly() as connection:
        assert connection.execute("SELECT _kafka_key FROM d.A").fetchall() == [(b"other",)]


def test_a_first_batch_that_is_skipped_leaves_no_rows_to_convert(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.put(1, name="a")
    database.put(2, name="b")
    with database.duckdb._writing() as connection:  # its statement fails
        connection.execute("CREATE SCHEMA d; CREATE TABLE d._kbq_deleted_A (key_0 INTEGER)")
    database.cycle()
    parked = database.table().parked
    assert parked is not None
    assert parked.reason == "statement_failed"
    entry = AuditEntry(0, "", 0, "loaded by hand", "ann")
    propose_skip(database.bench.store, database.duckdb, A, 1, entry).apply()
    with database.duckdb._writing() as connection:
        connection.execute("DROP TABLE d._kbq_deleted_A")
    database.put(1, name="c")
    [report] = database.cycle().tables
    assert (report.state, report.message) == ("idle", "")
    assert {key: row["name"] for key, row in database.shown().items()} == {1: "c"}
