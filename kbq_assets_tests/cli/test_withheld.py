"""Withheld or dropped personal data is reported, and a run that read nothing reports its cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import POISON, TOPIC, FakePlatform

PII = " pii=x:drop,_key:keep headers=false error_share=1"


@pytest.mark.parametrize(
    ("options", "expected"), [(PII, "value: withheld"), (" error_share=1", "value: 7 B")]
)
def test_a_value_that_is_withheld_is_not_called_null(tmp_path: Path, options: str, expected: str) -> None:
    world = FakePlatform(tmp_path, sources=f"{TOPIC} dataset=shop table=orders{options}\n", keep_records=True)
    world.produce(value=POISON)
    run = Shell(world)
    run("extract")
    run("load")
    shown = run.done("errors", "show", TOPIC, "0", "0")
    assert expected in shown
    assert "value: null" not in shown


def test_the_cause_of_a_run_that_read_nothing_is_its_most_common_failure(tmp_path: Path) -> None:
    world = FakePlatform(tmp_path)
    world.produce()
    world.produce(partition=1)
    world.registry.down = True
    report = world.parts.extractor.extract()
    assert report.cause.startswith(f"{TOPIC}[0]: ")
    assert "the registry is down" in report.cause


def test_values_that_no_decision_names_are_counted_where_they_are_dropped(tmp_path: Path) -> None:
    options = "format=json_columns pii=x:keep,_key:keep headers=false pii_others=drop"
    world = FakePlatform(tmp_path, sources=f"{TOPIC} dataset=shop table=orders {options}\n")
    for document in (b'{"x": 1, "y": 2, "z": 3}', b'{"x": 1}', b'{"y": 2}'):
        world.produce(value=document)
    shown = Shell(world).done("extract")
    assert "dropped 3 values without a decision in pii" in shown
    assert Shell(world).json("status")["partitions"][0]["dropped_values"] == 3
