"""Columns and tables in BigQuery's form and back: what is kept, what is added, and what is impossible."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import bigquery

from kbq_assets.adapters.bigquery import schema
from kbq_assets.core.errors import WrongOptions
from kbq_assets.core.loading.table_notes import TableNotes
from kbq_assets.core.loading.tables import Column, TableOptions

REFERENCE = bigquery.TableReference.from_string("p.d.t")
#: BigQuery's names of a type, in its API and in SQL.
TYPES = {
    "INTEGER": "INT64",
    "FLOAT": "FLOAT64",
    "BOOLEAN": "BOOL",
    "RECORD": "STRUCT",
    "DECIMAL": "NUMERIC",
    "BIGDECIMAL": "BIGNUMERIC",
}
SAME = (
    "STRING",
    "BYTES",
    "DATE",
    "TIME",
    "DATETIME",
    "TIMESTAMP",
    "NUMERIC",
    "BIGNUMERIC",
    "JSON",
    "GEOGRAPHY",
)


def field(name: str = "a", kind: str = "STRING", mode: str = "NULLABLE", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "mode": mode, **more}


class TestColumns:
    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [*TYPES.items(), *((kind, kind) for kind in (*TYPES.values(), *SAME)), ("range", "RANGE")],
    )
    def test_either_name_of_a_type_is_ours(self, theirs: str, ours: str) -> None:
        assert schema.column_of(field(kind=theirs)).type == ours
        assert schema.column_of(field(kind=theirs.lower())).type == ours

    @pytest.mark.parametrize("kind", [*SAME, "INT64", "FLOAT64", "BOOL"])
    @pytest.mark.parametrize("mode", ["NULLABLE", "REQUIRED", "REPEATED"])
    def test_a_column_comes_back_from_the_api(self, kind: str, mode: str) -> None:
        column = Column("A_b", kind, mode, description="what it is", policy_tag="projects/p/tag")
        assert schema.column_of(schema.field_of(column)) == column
        [parsed] = schema.api_fields(schema.schema_fields([schema.field_of(column)]))
        assert schema.column_of(parsed) == column

    def test_records_are_nested(self) -> None:
        inner = Column("i", "STRUCT", "REPEATED", (Column("n", "INT64"),), "inner")
        column = Column("r", "STRUCT", "REQUIRED", (inner, Column("s", "STRING")))
        assert schema.column_of(schema.field_of(column)) == column

    @pytest.mark.parametrize(
        ("more", "column"),
        [
            ({"mode": None}, Column("a", "STRING")),
            ({"mode": ""}, Column("a", "STRING")),
            ({"mode": "required"}, Column("a", "STRING", "REQUIRED")),
            ({"description": None}, Column("a", "STRING")),
            ({"policyTags": {}}, Column("a", "STRING")),
            ({"policyTags": None}, Column("a", "STRING")),
            ({"policyTags": {"names": []}}, Column("a", "STRING")),
            ({"policyTags": {"names": ["x", "y"]}}, Column("a", "STRING", policy_tag="x")),
        ],
        ids=str,
    )
    def test_what_the_api_leaves_out_is_the_default(self, more: dict[str, Any], column: Column) -> None:
        assert schema.column_of({**field(), **more}) == column

    def test_blank_notes_are_not_sent(self) -> None:
        assert schema.field_of(Column("a", "INT64")) == {"name": "a", "type": "INTEGER", "mode": "NULLABLE"}

    @pytest.mark.parametrize(
        ("columns", "expected"),
        [
            ([], False),
            ([Column("a", "STRING")], False),
            ([Column("a", "STRING", policy_tag="t")], True),
            ([Column("r", "STRUCT", fields=(Column("a", "STRING", policy_tag="t"),))], True),
        ],
    )
    def test_policy_tags_are_found_in_records_too(self, columns: list[Column], expected: bool) -> None:
        assert schema.has_policy_tags(columns) is expected


class TestUpdates:
    def test_existing_fields_keep_what_kbq_does_not_know(self) -> None:
        existing = [field("A", defaultValueExpression="1", roundingMode="ROUND_HALF_EVEN", future=[1])]
        assert schema.updated(existing, [Column("a", "STRING")]) == existing
        assert schema.updated(existing, []) == existing

    def test_missing_columns_follow_and_are_never_required(self) -> None:
        added = Column(
            "r", "STRUCT", "REQUIRED", (Column("n", "INT64", "REQUIRED"), Column("l", "BOOL", "REPEATED"))
        )
        assert schema.updated([field()], [added, Column("a", "STRING")])[1:] == [
            field("r", "RECORD", fields=[field("n", "INTEGER"), field("l", "BOOLEAN", "REPEATED")])
        ]

    @pytest.mark.parametrize(
        ("before", "wanted", "after"),
        [
            ("REQUIRED", "NULLABLE", "NULLABLE"),
            ("REQUIRED", "REQUIRED", "REQUIRED"),
            ("REQUIRED", "REPEATED", "REQUIRED"),
            ("NULLABLE", "REQUIRED", "NULLABLE"),
            ("REPEATED", "NULLABLE", "REPEATED"),
        ],
    )
    def test_a_mode_is_relaxed_and_never_tightened(self, before: str, wanted: str, after: str) -> None:
        [found] = schema.updated([field(mode=before)], [Column("A", "STRING", wanted)])
        assert found["mode"] == after

    def test_fields_of_records_are_updated_in_place(self) -> None:
        existing = [field("r", "RECORD", fields=[field("x", mode="REQUIRED"), field("y", "INTEGER")])]
        wanted = Column("R", "STRUCT", fields=(Column("z", "BOOL"), Column("X", "STRING")))
        [found] = schema.updated(existing, [wanted])
        assert [(each["name"], each["mode"]) for each in found["fields"]] == [
            ("x", "NULLABLE"),
            ("y", "NULLABLE"),
            ("z", "NULLABLE"),
        ]
        assert existing[0]["fields"][0]["mode"] == "REQUIRED", "what was read stays as it is"

    def test_notes_replace_notes_and_blank_ones_keep_them(self) -> None:
        existing = [field(description="by hand", policyTags={"names": ["old"]})]
        assert schema.updated(existing, [Column("a", "STRING")]) == existing
        [found] = schema.updated(existing, [Column("a", "STRING", description="new", policy_tag="tag")])
        assert (found["description"], found["policyTags"]) == ("new", {"names": ["tag"]})

    def test_a_shape_is_what_decides_whether_a_file_loads(self) -> None:
        given = field(
            "r", "RECORD", description="d", policyTags={"names": ["t"]}, precision=None, scale="2",
            fields=[field("x", maxLength="9", defaultValueExpression="1")],
        )  # fmt: skip
        assert schema.shape(given) == {
            "name": "r", "type": "RECORD", "mode": "NULLABLE", "scale": "2", "fields": [field("x", maxLength="9")],
        }  # fmt: skip
        assert schema.shape(field("r", "RECORD", fields=[])) == field("r", "RECORD")


class TestNewTables:
    @staticmethod
    def made(*columns: Column, **options: Any) -> bigquery.Table:
        return schema.new_table(REFERENCE, columns, TableOptions(**options))

    @pytest.mark.parametrize(
        ("unit", "kind", "made"),
        [
            ("", "DATE", "DAY"),
            ("day", "DATE", "DAY"),
            ("month", "DATE", "MONTH"),
            ("year", "DATETIME", "YEAR"),
        ],
    )
    def test_a_table_is_partitioned_by_its_date(self, unit: str, kind: str, made: str) -> None:
        found = self.made(Column("Event_Date", kind), partition_unit=unit).time_partitioning
        assert (found.type_, found.field, found.expiration_ms) == (made, "Event_Date", None)

    @pytest.mark.parametrize(
        ("own", "expected"),
        [
            ((), ("DAY", "event_date")),
            ((Column("_kafka_topic", "STRING"),), ("DAY", "event_date")),
            (
                (Column("_kafka_topic", "STRING"), Column("_kafka_timestamp", "TIMESTAMP")),
                ("HOUR", "_kafka_timestamp"),
            ),
            (
                (
                    Column("_kafka_topic", "STRING"),
                    Column("_kafka_timestamp", "TIMESTAMP"),
                    Column("_event_time", "TIMESTAMP"),
                ),
                ("HOUR", "_event_time"),
            ),
            ((Column("_event_time", "TIMESTAMP"), Column("_kafka_topic", "STRING")), ("DAY", "event_date")),
        ],
        ids=["no time", "no time of KBQ's", "Kafka's", "the business time", "a record's own"],
    )
    def test_partitions_by_hour_need_a_time_of_kbqs(
        self, own: tuple[Column, ...], expected: tuple[str, str]
    ) -> None:
        found = self.made(Column("event_date", "DATE"), *own, partition_unit="hour").time_partitioning
        assert (found.type_, found.field) == expected

    @pytest.mark.parametrize(("days", "millis"), [(0, None), (1, 86_400_000), (3_650, 315_360_000_000)])
    def test_partitions_expire_after_days(self, days: int, millis: int | None) -> None:
        found = self.made(Column("event_date", "DATE"), expiry_days=days, require_partition_filter=True)
        assert (found.time_partitioning.expiration_ms, found.require_partition_filter) == (millis, True)

    def test_a_table_without_the_date_has_no_partitions(self) -> None:
        found = self.made(Column("a", "STRING"), expiry_days=1, require_partition_filter=True)
        assert found.time_partitioning is None
        assert not found.require_partition_filter

    @pytest.mark.parametrize(
        ("column", "message"),
        [
            (Column("event_date", "STRING"), "NULLABLE STRING"),
            (Column("event_date", "DATE", "REPEATED"), "REPEATED DATE"),
        ],
    )
    def test_a_column_that_cannot_partition_is_refused(self, column: Column, message: str) -> None:
        with pytest.raises(
            WrongOptions, match=rf"table d\.t cannot be partitioned by event_date: it is {message}"
        ):
            self.made(column)

    def test_a_table_is_clustered_by_columns_that_it_has_in_the_order_of_the_option(self) -> None:
        columns = [Column(name, "STRING") for name in ("A", "b", "c")]
        assert self.made(*columns, cluster_by=("C", "none", "a")).clustering_fields == ["c", "A"]
        assert self.made(*columns).clustering_fields is None

    @pytest.mark.parametrize(
        ("column", "message"),
        [
            (Column("a", "FLOAT64"), "NULLABLE FLOAT64"),
            (Column("a", "JSON"), "NULLABLE JSON"),
            (Column("a", "STRING", "REPEATED"), "REPEATED STRING"),
        ],
    )
    def test_a_column_that_cannot_cluster_is_refused(self, column: Column, message: str) -> None:
        with pytest.raises(WrongOptions, match=f"clustered by a: it is {message}") as raised:
            self.made(column, cluster_by=("a",))
        assert "STRING" in raised.value.next_step

    @pytest.mark.parametrize("count", [4, 5])
    def test_four_columns_cluster_and_five_do_not(self, count: int) -> None:
        columns = [Column(f"c{n}", "INT64") for n in range(count)]
        names = tuple(column.name for column in columns)
        if count == 4:
            assert self.made(*columns, cluster_by=names).clustering_fields == list(names)
        else:
            with pytest.raises(WrongOptions, match="5 columns to cluster by"):
                self.made(*columns, cluster_by=names)

    def test_notes_and_labels_are_the_tables(self) -> None:
        notes = TableNotes("what it is", {"owner": "notes"})
        found = self.made(Column("a", "STRING"), labels={"owner": "job", "by": "kbq"}, notes=notes)
        assert (found.description, dict(found.labels)) == ("what it is", {"owner": "notes", "by": "kbq"})


class TestStoredTables:
    def test_a_table_that_was_made_is_read_back(self) -> None:
        columns = (Column("event_date", "DATE"), Column("a", "INT64", "REQUIRED", description="d"))
        table = schema.new_table(
            REFERENCE, columns, TableOptions(expiry_days=2, notes=TableNotes("text", {"k": "v"}))
        )
        found = schema.stored_table(table)
        assert (found.columns, found.description, found.labels) == (columns, "text", {"k": "v"})
        assert (found.rows, found.expires, found.partition_expiry_ms) == (0, False, 172_800_000)

    @pytest.mark.parametrize(
        ("columns", "days", "changed", "millis"),
        [
            ([Column("a", "STRING")], 3, ["expires"], None),
            ([Column("event_date", "DATE")], 3, ["expires", "time_partitioning"], 259_200_000),
            ([Column("event_date", "DATE")], 0, ["expires", "time_partitioning"], None),
        ],
        ids=["no partitions", "three days", "never"],
    )
    def test_expiry_is_the_partitions_and_never_the_tables(
        self, columns: list[Column], days: int, changed: list[str], millis: int | None
    ) -> None:
        table = schema.new_table(REFERENCE, columns, TableOptions(expiry_days=9))
        assert schema.expire(table, days) == changed
        assert table.expires is None
        assert schema.stored_table(table).partition_expiry_ms == (millis or 0)
        if table.time_partitioning:
            assert (table.time_partitioning.type_, table.time_partitioning.field) == ("DAY", "event_date")

    def test_only_notes_that_differ_are_changed(self) -> None:
        table = schema.new_table(REFERENCE, [], TableOptions(notes=TableNotes("text", {"k": "v"})))
        assert schema.noted_fields(table, TableNotes("text", {"k": "v"})) == []
        assert schema.noted_fields(table, TableNotes()) == []
        assert schema.noted_fields(table, TableNotes("other", {"k": "v"})) == ["description"]
        assert schema.noted_fields(table, TableNotes("other", {"new": "1"})) == ["labels"]
        assert (table.description, table.labels) == ("other", {"k": "v", "new": "1"})
