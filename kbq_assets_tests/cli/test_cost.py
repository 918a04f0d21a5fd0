"""`kbq plan --cost`."""

from __future__ import annotations

from pathlib import Path

from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import FakePlatform


def test_a_plan_says_what_its_cycles_cost_a_month(run: Shell, world: FakePlatform) -> None:
    world.produce(3)
    planned = run.json("plan", "--cost")
    extract, load = planned["cost"]
    assert (extract["run"], load["run"]) == ("extract", "load")
    assert extract["done_files"] == len(planned["extract"]["units"]) > 0
    cycles = 30.4 * 86_400 / extract["every_seconds"]
    assert abs(extract["month_class_a"] - extract["class_a"] * cycles) <= 1
    assert extract["month_usd_multi_region"] > extract["month_usd_region"] > 0
    text = run.done("plan", "--cost")
    assert "USD in a region" in text and "list prices of November 2026" in text
    assert "cost" not in run.json("plan")


def test_without_done_files_a_cycle_writes_half(tmp_path: Path) -> None:
    cycles = []
    for done_files in ("on", "off"):
        (tmp_path / done_files).mkdir()
        world = FakePlatform(tmp_path / done_files, environ={"KBQ_DONE_FILES": done_files})
        world.produce(3)
        cycles.append(Shell(world).json("plan", "--cost")["cost"][0])
        world.parts.extractor.extract()
        assert bool([path for path in world.objects() if path.startswith("done/")]) == (done_files == "on")
        world.parts.loader.load()
        world.parts.extractor.extract()
    before, after = cycles
    assert (after["done_files"], before["class_a"] - after["class_a"]) == (0, before["done_files"] + 1)
