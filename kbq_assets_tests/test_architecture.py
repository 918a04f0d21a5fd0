"""What import contracts cannot say: which packages core may use, who reads the environment, which names leak."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kbq_assets_tests.sources import parse_source

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = sorted((REPOSITORY / "kbq_assets").rglob("*.py"))
# The composition root hands the environment in; the others read what is not KBQ's to name: JAVA_HOME and PATH.
READERS_OF_THE_ENVIRONMENT = {
    "component.py": "a root of composition too: a Dagster project makes KBQ of its own environment",
    "definitions.py": "the composition root",
    "adapters/java.py": "JAVA_HOME and PATH",
    "adapters/kafka/options.py": "env:NAME, resolved where the secret is used",
    "adapters/secrets.py": "env:NAME, resolved where the secret is used",
    "defs/instance/database.py": "written for Dagster's configuration, which names a variable",
    "defs/instance/webserver.py": "a program of its own: the public address of the UI",
    "adapters/forking/handover.py": "hands the environment over to a process that goes on in another's place",
    "adapters/spark/daemon.py": "the standby's address, which the driver sets for Spark's daemon",
    "worker/daemon.py": "a program of its own: numpy's number of threads",
    "adapters/spark/session.py": "JAVA_HOME and the variables that Spark itself reads",
}

#: Imported by another name, or a part of a package that we ask for.
IMPORTED_AS = {"yaml": "pyyaml", "py4j": "pyspark", "sqlalchemy": "dagster", "grpc_tools": "grpcio_tools"}


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY / "kbq_assets").as_posix()


class Facts(NamedTuple):
    """What these tests ask about a module."""

    text: str
    packages: frozenset[str]
    classes: tuple[str, ...]
    methods: dict[str, int]
    fields: dict[str, set[str]]
    #: Of functions longer than 45 lines that numba does not compile.
    lines: dict[str, int]
    parameters: dict[str, int]


@functools.cache
def facts_of(path: Path) -> Facts:
    """From one look at the module: parsing all of them takes seconds. The trees would stay in memory."""
    nodes = list(ast.walk(parse_source(path)))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    starts = [(each, m) for each in classes for m in methods_of(each) if m.name == "__init__"]
    return Facts(
        path.read_text(encoding="utf-8"),
        frozenset(imported_packages(nodes)),
        tuple(each.name for each in classes),
        {each.name: len(methods_of(each)) for each in classes},
        {each.name: fields_of(each) for each in classes},
        {f.name: body_lines(f) for f in functions if body_lines(f) > 45 and not is_kernel(f)},
        {each.name: len(m.args.args) + len(m.args.kwonlyargs) - 1 for each, m in starts},
    )


def imported_packages(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_core_imports_the_standard_library_alone() -> None:
    allowed = sys.stdlib_module_names | {"kbq_assets"}
    core = [path for path in SOURCES if name_of(path).startswith("core/")]
    assert {name_of(path): others for path in core if (others := facts_of(path).packages - allowed)} == {}


def test_the_environment_is_read_in_few_places() -> None:
    readers = {
        name_of(path) for path in SOURCES if re.search(r"\bos\.(environ|getenv)\b", facts_of(path).text)
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
    imported = {package for path in SOURCES for package in facts_of(path).packages}
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


#: Decorators of kbq_assets.wire.jit.
KERNELS = {"kernel", "inlined", "outlined"}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the signature to the end."""
    return (function.end_lineno or 0) - function.lineno + 1


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether numba compiles it: a kernel is one loop, and calls cost."""
    return any(ast.unparse(decorator) in KERNELS for decorator in function.decorator_list)


def methods_of(each: ast.ClassDef) -> list[ast.FunctionDef]:
    return [node for node in each.body if isinstance(node, ast.FunctionDef)]


def fields_of(each: ast.ClassDef) -> set[str]:
    """Names that a class declares, and those that its methods assign."""
    declared = {node.target.id for node in each.body if _is_declared(node)}  # type: ignore[attr-defined]
    assigned = {
        node.attr
        for node in ast.walk(each)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    return declared | assigned


def _is_declared(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def test_modules_classes_and_functions_stay_small() -> None:
    found = {(name_of(path), what) for path in SOURCES for what in _too_large(facts_of(path))}
    assert found == set()


def _too_large(facts: Facts) -> Iterator[str]:
    if (lines := len(facts.text.splitlines())) > 400:
        yield f"{lines} lines"
    yield from (f"{name}: {count} methods" for name, count in facts.methods.items() if count > 20)
    yield from (f"{name}: {len(fields)} fields" for name, fields in facts.fields.items() if len(fields) > 15)
    yield from (f"{name}: {lines} lines" for name, lines in facts.lines.items())
    yield from (f"{name}: {count} parameters" for name, count in facts.parameters.items() if count > 8)


def test_a_class_name_is_one_thing() -> None:
    names = Counter(name for path in SOURCES for name in facts_of(path).classes if not name.startswith("_"))
    assert {name for name, count in names.items() if count > 1} == set()


@pytest.mark.parametrize("layer", ["core", "pipelines", "wire", "extras"])
def test_the_tree_of_the_documentation_names_every_subject(layer: str) -> None:
    tree = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8").split("```")[3]
    shown = re.split(r"^  (?=\w)", tree, flags=re.MULTILINE)
    [section] = [each for each in shown if each.startswith(f"{layer}/")]
    subjects = {path.parent.name for path in (REPOSITORY / "kbq_assets" / layer).glob("*/__init__.py")}
    assert subjects - set(re.findall(r"(\w+)/", section)) == set()


EXTRAS = REPOSITORY / "kbq_assets" / "extras"
#: The local stack and the demo are no part of a production install. They show what these extras find.
ROOTS = {"definitions.py", "commands.py"}
SHOWN_BY_LOCAL = {"doctor": ["local/stack/health.py"], "reconcile": ["local/demo/cli.py"]}


@pytest.mark.parametrize("extra", sorted(path.parent.name for path in EXTRAS.glob("*/__init__.py")))
def test_an_extra_is_deleted_with_its_folder_and_its_lines_in_definitions(extra: str) -> None:
    named = re.compile(
        rf"kbq_assets\.extras\.{extra}\b|kbq_assets\.extras import .*\b{extra}\b|\"extras\.{extra}\."
    )
    users = [name_of(path) for path in SOURCES if named.search(facts_of(path).text)]
    outside = [user for user in users if not user.startswith(f"extras/{extra}/")]
    assert [user for user in outside if user not in ROOTS] == SHOWN_BY_LOCAL.get(extra, [])
    assert set(outside) & ROOTS


#: Batches of files have a folder of this name in several layers, their settings, and a port.
FILE_BATCHES = re.compile(
    r"kbq_assets\.(core|pipelines|adapters|extras)\.filebatches|kbq_assets\.ports\.file_loads"
)
OF_FILE_BATCHES = re.compile(r"\w+/filebatches/|ports/file_loads\.py|core/config/filebatches\.py")


def test_batches_of_files_are_deleted_with_their_folders() -> None:
    users = {name_of(path) for path in SOURCES if FILE_BATCHES.search(facts_of(path).text)}
    assert {user for user in users if not OF_FILE_BATCHES.match(user)} == {"definitions.py"}


_WITHOUT_EXTRAS = """
import sys
from pathlib import Path


class Deleted:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("kbq_assets.extras", "kbq_assets.local")):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Deleted())

from click.testing import CliRunner

from kbq_assets import cli
from kbq_assets.defs.build import build_definitions
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets_tests.fakes.platform import FakePlatform

world = FakePlatform(Path(sys.argv[1]))
world.produce(3)
for command in ("plan", "extract", "load", "clean", "status", "check", "completeness"):
    result = CliRunner().invoke(cli.command_line(cli.COMMANDS), [command], obj=world.reopened)
    assert result.exit_code == 0, (command, result.output, result.exception)
assert [table.loaded_rows for table in world.parts.observer.tables()] == [3]
jobs = build_definitions(world.parts, AssetTranslator()).resolve_job_def("extract_and_load")
"""


def test_the_spine_runs_without_any_extra(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
