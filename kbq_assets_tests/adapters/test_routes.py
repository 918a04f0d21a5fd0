"""Routes of other packages: installed as packages are, found by name, shipped to workers."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from kbq_assets.adapters.routes import find_route
from kbq_assets.adapters.spark import environment
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.destinations import RoutedRecord
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.pipelines.bench import TP, Bench, value

MODULE = """
from kbq_assets.core.topics.destinations import RoutedRecord, inputs

@inputs("key")
def by_key(record: RoutedRecord) -> str | None:
    return f"of_{record.key.decode()}" if record.key else None

def plain(record: RoutedRecord) -> str | None:
    return "x"
"""
METADATA = "Metadata-Version: 2.1\nName: Somebodys_Routes\nVersion: 1.0\nRequires-Dist: kbq-assets\n"
ENTRY_POINTS = """[kbq_assets.routes]
by_key = somebodys_routes:by_key
plain = somebodys_routes:plain
gone = somebodys_routes_of_old:by_key
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as pip installs it, in a folder of `sys.path`."""
    meta = tmp_path / "somebodys_routes-1.0.dist-info"
    meta.mkdir()
    (tmp_path / "somebodys_routes.py").write_text(MODULE)
    (meta / "METADATA").write_text(METADATA)
    (meta / "entry_points.txt").write_text(ENTRY_POINTS)
    (meta / "RECORD").write_text(
        "somebodys_routes.py,,\nsomebodys_routes-1.0.dist-info/METADATA,,\nsomebodys_routes-1.0.dist-info/entry_points.txt,,\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_installed_route_is_found_by_its_name_and_routes(package: Path) -> None:
    bench = Bench(TopicSettings.of(dataset="d", route="python:by_key"))
    for key in (b"A", b"b", None):
        bench.kafka.produce(TP, value(1), key=key, timestamp=1000)
    bench.extract()
    bench.load()
    assert bench.reconcile().accounted
    found = {
        str(table): [row.offset for row in stored.rows] for table, stored in bench.warehouse.stored.items()
    }
    assert found == {"d.of_a": [0], "d.of_b": [1], "d.kbq_errors": [2]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobodys", "no installed package has it.*available: by_key, gone, plain"),
        ("plain", "does not declare its inputs"),
        ("gone", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_route_that_cannot_be_used_says_why(package: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s)route=python:{name}.*{message}"):
        find_route(name)


def test_packages_with_routes_go_to_workers_and_do_not_bring_what_drivers_need(package: Path) -> None:
    packed = {found.name: found for found in environment.distributions()}
    assert "somebodys_routes.py" in map(str, packed["Somebodys_Routes"].files or ())
    assert not {"kbq-assets", "dagster"} & set(packed)
    assert importlib.metadata.distribution("dagster"), "or this proves nothing"


def test_a_route_can_be_called_by_itself(package: Path) -> None:
    route = find_route("by_key")
    assert (route.inputs, route(RoutedRecord("t", key=b"x")), route(RoutedRecord("t"))) == (
        ("key",),
        "of_x",
        None,
    )
