"""docs/mutants.md lists every mutant that a test runs, and the test."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kbq_assets_tests.mutants import PAGE, TESTS, page, sections
from kbq_assets_tests.sources import parse_source

#: A file with none of these runs no mutant.
WORDS = ("mutant", ".active()", "a_removed_rule")


def names_of_tests() -> Iterator[str]:
    """Tests that run mutants: they take one, or have one in force."""
    for path in sorted(TESTS.rglob("test_*.py")):
        if not any(word in path.read_text(encoding="utf-8") for word in WORDS):
            continue
        for node in parse_source(path).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                text, file = ast.unparse(node), path.relative_to(TESTS).as_posix()
                arguments = {each.arg for each in node.args.args}
                left_out = "mark.slow" in text or "mark.thorough" in text
                assert not left_out or "mutant" not in arguments, node.name
                if "mutant" in arguments or ".active()" in text or "a_removed_rule" in node.name:
                    yield f"{file}::{node.name}"


def test_the_page_is_that_of_the_lists_that_tests_run_over() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "make reference"


def test_every_test_of_mutants_is_listed() -> None:
    listed = {each.test for each in sections()}
    assert listed == set(names_of_tests())


def test_every_rule_is_a_rule_of_the_protocol() -> None:
    protocol = (PAGE.parent / "protocol.md").read_text(encoding="utf-8")
    numbers = {number.strip() for each in sections() for row in each.rows for number in row.rule.split(",")}
    assert {number for number in numbers if f"**{number}**" not in protocol} == set()
