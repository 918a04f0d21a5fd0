"""What import contracts cannot say: which packages core may use, who reads the environment, which names leak."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = sorted((REPOSITORY / "kbq_assets").rglob("*.py"))
# The composition root hands the environment in; the others read what is not KBQ's to name: JAVA_HOME and PATH.
READERS_OF_THE_ENVIRONMENT = {
    "definitions.py": "the composition root",
    "adapters/java.py": "JAVA_HOME and PATH",
    "adapters/kafka/options.py": "env:NAME, resolved where the secret is used",
    "adapters/secrets.py": "env:NAME, resolved where the secret is used",
    "adapters/spark/session.py": "JAVA_HOME and the variables that Spark itself reads",
}

#: Imported by another name, or a part of a package that we ask for.
IMPORTED_AS = {"yaml": "pyyaml", "py4j": "pyspark", "sqlalchemy": "dagster", "grpc_tools": "grpcio_tools"}


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY / "kbq_assets").as_posix()


def imported_packages(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("path", [path for path in SOURCES if name_of(path).startswith("core/")], ids=name_of)
def test_core_imports_the_standard_library_alone(path: Path) -> None:
    assert set(imported_packages(path)) <= sys.stdlib_module_names | {"kbq_assets"}


def test_the_environment_is_read_in_few_places() -> None:
    readers = {
        name_of(path)
        for path in SOURCES
        if re.search(r"\bos\.(environ|getenv)\b", path.read_text(encoding="utf-8"))
    }
    assert readers - READERS_OF_THE_ENVIRONMENT.keys() == set()


def test_every_package_that_is_imported_is_asked_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        each for name in ("demo", "postgres", "protobuf") for each in project["optional-dependencies"][name]
    ]
    asked = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in project["dependencies"] + extras}
    # `google` is the namespace of google-cloud-*.
    asked |= {name for name, package in IMPORTED_AS.items() if package in asked}
    asked |= {"kbq_assets", "google"} | set(sys.stdlib_module_names)
    imported = {package for path in SOURCES for package in imported_packages(path)}
    assert imported - asked == set()


@pytest.mark.parametrize("lock", sorted(REPOSITORY.glob("requirements*.lock")), ids=lambda path: path.name)
def test_locks_pin_by_hash_and_name_no_host(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    pins = re.findall(r"^[\w.\[\]-]+==", text, re.MULTILINE)
    blocks = re.split(r"^(?=[\w.\[\]-]+==)", text, flags=re.MULTILINE)[1:]
    assert len(pins) == len(blocks)
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in text


def test_every_folder_of_python_is_a_package() -> None:
    folders = {path.parent for path in SOURCES}
    assert {name_of(folder) for folder in folders if not (folder / "__init__.py").is_file()} == set()
