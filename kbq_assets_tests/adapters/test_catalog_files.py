"""The catalog's folder: every value records its line, in any format."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbq_assets.adapters.catalog_files import CatalogFolder, parse_document
from kbq_assets.core.catalog import CatalogProblem, DocumentNode
from kbq_assets.core.errors import ConfigurationError


def node(text: str) -> DocumentNode:
    parsed = parse_document(text, "x.yaml")
    assert isinstance(parsed, DocumentNode), parsed
    return parsed


def test_values_know_the_line_of_their_key() -> None:
    document = node("a: 1\nb:\n  # a comment\n  c:\n    d: x\n")
    found = {where: document.find(where) for where in ("a", "b", "b.c", "b.c.d")}
    assert {where: each.line for where, each in found.items() if each} == {
        "a": 1,
        "b": 2,
        "b.c": 4,
        "b.c.d": 5,
    }


def test_json_writes_emoji_as_two_escapes(tmp_path: Path) -> None:
    pair, plain = r"\ud83d\uDE00", r"\\ud83d\\ude00"  # the second is text about escapes
    (tmp_path / "topic.json").write_text(f'{{"a": "{pair}", "{pair}": "{plain}",\n "b": "\\u00e9\\n"}}')
    (tmp_path / "single.yaml").write_text(f"a: '{pair}'")
    files = CatalogFolder(tmp_path).read()
    assert files.problems == ()
    document = files.documents["topic.json"]
    assert document.plain() == {"a": "😀", "😀": r"\ud83d\ude00", "b": "é\n"}
    found = document.find("b")
    assert found is not None and found.line == 2
    assert files.documents["single.yaml"].plain() == {"a": pair}, "YAML's single quotes know no escapes"


@pytest.mark.parametrize("text", [rb'"\ud83d"', rb'"\ude00\ud83d"', b'"\xff"'])
def test_half_an_emoji_is_a_mistake_of_its_file(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "topic.json").write_bytes(b'{"a": ' + text + b"}")
    assert [problem.path for problem in CatalogFolder(tmp_path).read().problems] == ["topic.json"]


def test_json_is_read_alike() -> None:
    document = node('{\n "a": [1, 2.5, "x", null, true],\n "b": {"c": "\\u00e9"}\n}')
    assert document.plain() == {"a": [1, 2.5, "x", None, True], "b": {"c": "é"}}
    inner = document.find("b.c")
    assert inner is not None and inner.line == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("No", "No"),
        ("true", True),
        ("2025-01-01", "2025-01-01"),
        ("0x1F", "0x1F"),
        ("-5", -5),
        ("1e3", "1e3"),
        ("1.5", 1.5),
        ("~", None),
        ("'5'", "5"),
        ("12:30", "12:30"),
    ],
)
def test_only_yaml_1_2_s_words_are_no_texts(text: str, value: object) -> None:
    assert node(f"k: {text}").plain() == {"k": value}


@pytest.mark.parametrize(
    ("text", "line"), [("a: 1\na: 2", 2), ("a: [1", 2), ("? [1]\n: 2", 1), ("a: b: c", 1), ("a: \x00", 1)]
)
def test_what_is_no_document_is_a_mistake_with_its_line(text: str, line: int) -> None:
    problem = parse_document(text, "x.yaml")
    assert isinstance(problem, CatalogProblem)
    assert (problem.path, problem.line) == ("x.yaml", line)


def test_aliases_are_followed_and_objects_are_not_made() -> None:
    assert node("a: &x {b: 1}\nc: *x").plain() == {"a": {"b": 1}, "c": {"b": 1}}
    assert node("a: !!python/object/apply:os.getpid []").plain() == {"a": []}


ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ALIAS_BOMB, "more than 100,000 values"),
        ("a: &a [*a]", "in itself"),
        ("a: &a {b: {c: *a}}", "in itself"),
        ("[" * 100_000, "nested deeper"),
        ("a: " + "{b: " * 100_000, "nested deeper"),
        ("- " * 100_000 + "x", "nested deeper"),
        ("a: " + "x" * 5_000_000, "larger than"),
        ("9" * 5_000, None),
    ],
)
def test_a_document_made_to_exhaust_its_reader_is_a_problem_of_its_file(
    text: str, message: str | None
) -> None:
    found = parse_document(text, "x.yaml")
    if message is None:
        assert isinstance(found, DocumentNode)
    else:
        assert isinstance(found, CatalogProblem), found
        assert message in found.message


def test_documents_and_schemas_are_distinguished_and_hidden_files_left_out(tmp_path: Path) -> None:
    for path in (".git/x.yaml", "a/schemas/value.json", "a/topic.yaml", "README.md", "a/.topic.yaml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("{}")
    found = CatalogFolder(tmp_path).read()
    assert set(found.documents) == {"a/topic.yaml"}
    assert set(found.schemas) == {"a/schemas/value.json"}


def test_a_file_is_read_again_when_it_changed_and_only_then(tmp_path: Path) -> None:
    file = tmp_path / "catalog.yaml"
    file.write_text("envs: [a]")
    folder = CatalogFolder(tmp_path)
    first = folder.read()
    assert folder.read().documents["catalog.yaml"] is first.documents["catalog.yaml"]
    file.write_text("envs: [b]")
    os.utime(file, ns=(1, 1))
    assert folder.read().documents["catalog.yaml"].plain() == {"envs": ["b"]}
    file.unlink()
    assert folder.read().documents == {}


def test_a_folder_that_is_not_there_is_a_setting_to_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a folder"):
        CatalogFolder(tmp_path / "none").read()


ENTRY = "loading: {load: sql, sql: %s}\n"


def folder_with(tmp_path: Path, **files: str) -> CatalogFolder:
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CatalogFolder(tmp_path)


@pytest.mark.parametrize(
    ("name", "file"), [("apply.sql", "a__b__apply_dot_sql"), ("../sql/apply.sql", "a__sql__apply_dot_sql")]
)
def test_sql_of_a_file_is_read_next_to_the_document_that_names_it_and_a_change_is_seen(
    tmp_path: Path, name: str, file: str
) -> None:
    folder = folder_with(tmp_path, a__b__topic_dot_yaml=ENTRY % name, **{file: "SELECT 1"})
    found = folder.read()
    node = found.documents["a/b/topic.yaml"].find("loading.sql")
    assert node is not None and (node.value, node.line, found.problems) == ("SELECT 1", 1, ())
    folder_with(tmp_path, **{file: "SELECT 2"})
    changed = folder.read().documents["a/b/topic.yaml"].find("loading.sql")
    assert changed is not None and changed.value == "SELECT 2"


@pytest.mark.parametrize("name", ["missing.sql", "../../../../etc/x.sql", "/etc/x.sql"])
def test_a_file_that_the_catalog_does_not_have_is_a_mistake_with_its_place(tmp_path: Path, name: str) -> None:
    folder = folder_with(tmp_path, a__topic_dot_yaml="x: 1\n" + ENTRY % name)
    [problem] = folder.read().problems
    assert (problem.path, problem.line, problem.where) == ("a/topic.yaml", 2, "loading.sql")
    assert "there is no file" in problem.message


def test_a_text_is_no_name_of_a_file(tmp_path: Path) -> None:
    text = "SELECT * FROM t -- see x.sql"
    found = folder_with(tmp_path, topic_dot_yaml=f"loading: {{gate_sql: '{text}'}}\n").read()
    node = found.documents["topic.yaml"].find("loading.gate_sql")
    assert node is not None and (node.value, found.problems) == (text, ())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("+5", 5),
        ("0x1f", "0x1f"),
        ("9" * 5_000, "9" * 5_000),
        ('!!int "+-5"', "+-5"),
        ('!!int "--5"', "--5"),
        ('!!int ""', ""),
        ('!!float "x"', "x"),
        ('!!float "1"', 1.0),
        ('!!bool "x"', "x"),
        ("!unknown y", "y"),
        ("~", None),
        ("TRUE", True),
        ("yes", "yes"),
    ],
    ids=lambda part: repr(part)[:20],
)
def test_a_value_is_what_its_text_says_whatever_its_tag_claims(text: str, value: object) -> None:
    found = parse_document(f"a: {text}", "p")
    assert isinstance(found, DocumentNode)
    assert isinstance(found.value, dict)
    assert found.value["a"].value == value


@pytest.mark.parametrize(
    "text", ["a: \ud800", b"a: \xff", b"\x00", "a: [", "a: *b", "? [a]\n: b", "--- a\n--- b"], ids=ascii
)
def test_what_is_no_document_is_a_problem_with_its_file(text: str | bytes) -> None:
    found = parse_document(text, "topics/a.yaml")
    assert isinstance(found, CatalogProblem)
    assert found.path == "topics/a.yaml"
