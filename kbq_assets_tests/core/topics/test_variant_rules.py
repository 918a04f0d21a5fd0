"""Laws of schema variants and of column names, for any schemas in any order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.loading.table_notes import OWN_COLUMNS
from kbq_assets.core.loading.tables import Column, type_of
from kbq_assets.core.topics.column_names import AS_WRITTEN, SNAKE_CASE, row_columns
from kbq_assets.core.topics.evolution import (
    NEW_TABLE_VERSION,
    VARIANT_COLUMN,
    Evolution,
    TableColumn,
    TableVariants,
    TableVersion,
    add_variant,
    evolutions,
    find_variant,
    varied_field,
    version_table,
    with_table_columns,
)

Path = tuple[str, ...]
NAMES = ["x", "y", "X__String", "x__int64", "x__string_2"]
TYPES = st.sampled_from(["INT64", "STRING", "FLOAT64"])


def struct(name: str, *fields: Column) -> Column:
    return Column(name, "STRUCT", "NULLABLE", fields)


def paths(columns: Iterable[Column], above: Path = ()) -> frozenset[Path]:
    found = [((*above, c.name), c) for c in columns]
    return frozenset({path for path, _ in found}.union(*(paths(c.fields, path) for path, c in found)))


def _columns(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Column, ...]]:
    kinds = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3)
    return kinds.map(lambda found: tuple(
        Column(name, kind) if isinstance(kind, str) else struct(name, *kind) for name, kind in found.items()
    ))  # fmt: skip


SCHEMAS = _columns(TYPES | _columns(TYPES))


def fits(
    columns: Sequence[Column], known: Sequence[TableColumn], renames: Mapping[Path, str], above: Path = ()
) -> bool:
    """Whether each field has its own column with its type."""
    ours = {each.name.lower(): each for each in known}
    for column in columns:
        path = (*above, column.name)
        own = ours.get(renames.get(path, column.name).lower())
        if own is None or own.type != type_of(column) or not fits(column.fields, own.fields, renames, path):
            return False
    targets = [renames.get((*above, column.name), column.name).lower() for column in columns]
    return len({*targets}) == len(targets)


def names_in(columns: Iterable[TableColumn]) -> Iterable[list[str]]:
    columns = list(columns)
    yield [each.name.lower() for each in columns]
    for each in columns:
        yield from names_in(each.fields)


def is_kept(before: Iterable[TableColumn], after: Iterable[TableColumn]) -> bool:
    """Whether every column is still there, with its type."""
    ours = {each.name: each for each in after}
    pairs = [(each, ours.get(each.name)) for each in before]
    return all(
        now is not None and (now.type, now.field) == (was.type, was.field) and is_kept(was.fields, now.fields)
        for was, now in pairs
    )


@pytest.mark.parametrize(
    ("column", "siblings", "field"),
    [
        ("x__string", ["x", "x__string"], "x"),
        ("x__string", ["x__string"], ""),
        ("x__int64", ["x", "x__int64"], ""),
        ("x__string_2", ["x", "x__string_2"], ""),
        ("y__string", ["x", "y__string"], ""),
    ],
)
def test_a_variant_of_the_warehouse_is_known_by_its_name(
    column: str, siblings: list[str], field: str
) -> None:
    assert varied_field(Column(column, "STRING"), [Column(name, "INT64") for name in siblings]) == field


@pytest.mark.parametrize(("version", "name"), [(1, "d.t"), (2, "d.t__v2"), (10, "d.t__v10")])
def test_a_version_s_table_has_a_number(version: int, name: str) -> None:
    assert version_table("d.t", version) == name


def test_a_version_s_name_may_be_too_long() -> None:
    with pytest.raises(InvalidName):
        version_table(f"d.{'t' * 197}", 2)


def test_evolutions_are_listed_table_by_table() -> None:
    inner = TableColumn("a__string", "STRING", "a")
    first = TableVersion((TableColumn("x", "INT64"), TableColumn("r", "STRUCT", fields=(inner,))))
    second = TableVersion((TableColumn("x__string", "STRING", "x"),))
    assert evolutions("d.t", TableVariants((first, second))) == (
        Evolution("d.t", "r.a", "r.a__string", "STRING"),
        Evolution("d.t__v2", "d.t"),
        Evolution("d.t__v2", "x", "x__string", "STRING"),
    )
    assert evolutions("d.t", TableVariants()) == ()


def test_a_list_and_a_value_contradict_each_other() -> None:
    known = find_variant(
        [Column("x", "INT64")], paths([Column("x", "INT64")]), TableVariants(), VARIANT_COLUMN
    ).variants
    found = find_variant([Column("x", "INT64", "REPEATED")], frozenset({("x",)}), known, VARIANT_COLUMN)
    assert list(found.renames) == [("x",)]


def test_a_staged_file_s_variant_is_in_the_table_itself() -> None:
    known = TableVariants(
        (TableVersion((TableColumn("x", "INT64"),)), TableVersion((TableColumn("x", "STRING"),)))
    )
    found = add_variant(
        [Column("x", "STRING")], frozenset({("x",)}), [Column("x", "INT64"), Column("z", "BOOL")], known
    )
    assert (found.version, found.renames) == (1, {("x",): "x__string"})
    assert [each.name for each in found.variants.versions[0].columns] == ["x", "z", "x__string"]
    assert found.variants.versions[1] == known.versions[1]


@pytest.mark.parametrize(
    ("fields", "style", "names"),
    [
        (["orderId"], AS_WRITTEN, {}),
        (["orderId", "id"], SNAKE_CASE, {"orderId": "order_id"}),
        (["orderId", "order_id"], SNAKE_CASE, {}),
        (["_kafkaOffset"], SNAKE_CASE, {}),
        (["_KafkaOffsets"], SNAKE_CASE, {"_KafkaOffsets": "_kafka_offsets"}),
        ([], SNAKE_CASE, {}),
    ],
)
def test_fields_get_other_names_if_the_topic_says_so(
    fields: list[str], style: str, names: dict[str, str]
) -> None:
    assert row_columns(fields, style) == names


@settings(max_examples=40)
@given(st.lists(SCHEMAS, min_size=1, max_size=5), st.sampled_from([VARIANT_COLUMN, NEW_TABLE_VERSION]))
def test_every_schema_fits_its_variant_for_ever_and_no_column_changes(
    schemas: list[tuple[Column, ...]], policy: str
) -> None:
    known, first = TableVariants(), []
    for columns in schemas:
        found = find_variant(columns, paths(columns), known, policy)
        version = found.variants.versions[found.version - 1]
        assert fits(columns, version.columns, found.renames)
        assert all(
            is_kept(a.columns, b.columns)
            for a, b in zip(known.versions, found.variants.versions, strict=False)
        )
        known = found.variants
        first.append((found.version, found.renames))
    assert all(len({*names}) == len(names) for v in known.versions for names in names_in(v.columns))
    again = [find_variant(columns, paths(columns), known, policy) for columns in schemas]
    assert [(found.version, found.renames) for found in again] == first
    assert all(found.variants == known for found in again)


@settings(max_examples=30)
@given(SCHEMAS, SCHEMAS, SCHEMAS)
def test_the_warehouse_s_columns_are_taken_as_they_are(
    staged: tuple[Column, ...], table: tuple[Column, ...], other: tuple[Column, ...]
) -> None:
    known = find_variant(staged, paths(staged), TableVariants(), VARIANT_COLUMN).variants
    merged = with_table_columns(known, table)
    assert fits(table, merged.versions[0].columns, {})
    assert with_table_columns(merged, table) == merged
    found = add_variant(other, paths(other), table, known)
    assert fits(other, found.variants.versions[0].columns, found.renames)
    assert fits(table, found.variants.versions[0].columns, {})


@settings(max_examples=30)
@given(
    st.sets(
        st.sampled_from(
            ["orderId", "order_id", "OrderID", "ts", "_kafkaOffset", "_kbqEpoch", "eventDate", "a1B"]
        )
    )
)
def test_no_field_gets_the_column_of_another_or_of_kbq(fields: set[str]) -> None:
    names = row_columns(fields, SNAKE_CASE)
    assert names.keys() <= fields
    columns = [names.get(field, field) for field in fields]
    assert len({*columns}) == len(columns)
    assert not {*names.values()} & {*OWN_COLUMNS}
