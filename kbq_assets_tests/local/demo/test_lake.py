"""The demo with a lake has its own state, and the demo's catalog with two warehouses."""

from __future__ import annotations

from pathlib import Path

from kbq_assets.adapters.catalog_files import CatalogFolder
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.local.demo.lake import WAREHOUSES, copy_catalog, lake_settings
from kbq_assets.pipelines.catalog.reader import read_catalog

EXAMPLE = Path("examples/catalog").absolute()


def test_its_state_is_apart_and_the_producers_log_is_shared(tmp_path: Path) -> None:
    plain = parse_settings({"KBQ_HOME": str(tmp_path)})
    changed = lake_settings(plain)
    assert changed.staging_url != plain.staging_url
    assert tuple(each.name for each in changed.warehouses) == WAREHOUSES
    assert changed.demo_log == plain.demo_log


def test_every_topic_goes_to_both_warehouses_and_a_second_copy_is_the_same(tmp_path: Path) -> None:
    for _ in range(2):
        copy_catalog(EXAMPLE, tmp_path / "catalog")
    entries = read_catalog(CatalogFolder(tmp_path / "catalog").read()).entries
    found = {each.settings.destination.warehouses for each in entries}
    assert found == {WAREHOUSES}
    assert {each.settings.destination.partitioning for each in entries} == {"month"}
