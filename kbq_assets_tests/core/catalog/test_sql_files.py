"""SQL of an entry may be in a file next to the document that names it."""

from __future__ import annotations

import pytest

from kbq_assets.core.catalog.sql_files import with_sql_files
from kbq_assets_tests.core.catalog.documents import documents

TEXTS = {"shop/apply.sql": "select 1", "shop/sql/gate.sql": "select 2", "common.sql": "select 3"}


def filled(text: str) -> tuple[object, list[str]]:
    found, problems = with_sql_files(documents({"shop/topic.yaml": text}), TEXTS)
    return found["shop/topic.yaml"].plain(), list(map(str, problems))


@pytest.mark.parametrize(
    ("value", "sql"),
    [
        ("apply.sql", "select 1"),
        ("./apply.sql", "select 1"),
        ("sql/gate.sql", "select 2"),
        ("../common.sql", "select 3"),
        ("select * from t", "select * from t"),
        ("select * from apply.sql", "select * from apply.sql"),
        ("apply.sql ;", "apply.sql ;"),
        ("5", 5),
    ],
    ids=[
        "next to it",
        "with a point",
        "in a folder",
        "in the folder above",
        "SQL",
        "SQL that ends like a file",
        "SQL after a name",
        "a number stays for validation",
    ],
)
@pytest.mark.parametrize("key", ["sql", "gate_sql"])
def test_the_name_of_a_file_becomes_its_text(key: str, value: str, sql: object) -> None:
    document = f"description: x\nloading:\n  load: sql\n  {key}: {value}\n"
    assert filled(document) == ({"description": "x", "loading": {"load": "sql", key: sql}}, [])


def test_a_document_without_sql_is_the_same() -> None:
    for text in ("description: x", "loading: text", "loading: {load: sql}"):
        before = documents({"shop/topic.yaml": text})
        assert with_sql_files(before, TEXTS) == (before, [])


def test_a_file_that_is_not_there_is_a_mistake_of_its_line() -> None:
    text = "loading:\n  sql: aply.sql\n  gate_sql: sql/gate.sql\n"
    document, problems = filled(text)
    assert document == {"loading": {"sql": "aply.sql", "gate_sql": "select 2"}}
    assert problems == [
        "shop/topic.yaml:2: loading.sql: there is no file shop/aply.sql"
        " (a file of the catalog, relative to this document)"
    ]


def test_the_text_keeps_the_line_of_its_name() -> None:
    found, _ = with_sql_files(documents({"shop/topic.yaml": "loading:\n  sql: apply.sql\n"}), TEXTS)
    node = found["shop/topic.yaml"].find("loading.sql")
    assert node is not None
    assert (node.value, node.path, node.line) == ("select 1", "shop/topic.yaml", 2)
