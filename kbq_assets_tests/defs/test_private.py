"""The private parts of Dagster that KBQ uses, listed so that an upgrade knows what to check."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import kbq_assets
from kbq_assets_tests.fixtures.local_stack import REPOSITORY
from kbq_assets_tests.sources import parse_source

SOURCES = Path(kbq_assets.__file__).parent


def private_imports() -> Iterator[tuple[str, str, str]]:
    """File, module and name of everything imported from below an underscore of Dagster's."""
    for file in sorted(SOURCES.rglob("*.py")):
        if "dagster._" not in file.read_text(encoding="utf-8"):
            continue
        for node in ast.walk(parse_source(file)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dagster._"):
                yield from ((file.name, node.module or "", alias.name) for alias in node.names)


@pytest.mark.parametrize(("file", "module", "name"), list(private_imports()))
def test_private_names_of_dagster_are_still_there(file: str, module: str, name: str) -> None:
    version = importlib.metadata.version("dagster")
    advice = f"Dagster {version} has no {module}.{name}: rewrite its use in {file} before moving the pin"
    try:
        found = importlib.import_module(module)
    except ImportError:
        pytest.fail(advice)
    assert hasattr(found, name), advice


def test_the_webserver_makes_its_application_from_the_class_that_is_replaced() -> None:
    from dagster_webserver import (
        app,
    )  # seconds, which each of pytest's workers would pay to collect this file

    from kbq_assets.defs.instance.webserver import LocalWebserver

    made = inspect.getsource(app.create_app_from_workspace_process_context)
    assert "DagsterWebserver(" in made
    assert vars(app)["DagsterWebserver"] in LocalWebserver.__mro__


def test_private_names_are_used_in_few_places() -> None:
    files = {file for file, _, _ in private_imports()}
    assert files <= {"orchestrator.py", "events.py", "reports.py"}


def test_dagster_is_pinned_to_the_release_that_has_them() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "dagster>=1.13,<1.14" in project["dependencies"]
