"""kbq check: each failure with its commands, an exit code for schedulers, and blocked topics shown everywhere."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kbq_assets.core.observation.check_names import BATCHES_APPLY, CHECKS, COUNTS_AGREE
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform

BLOCKED = (
    f"3 rows wait in 1 file: {TOPIC} is blocked by offsets_contiguous: {TOPIC}[0]: 4 positions are counted in [0, 3); "
    f"next: restore commits/ and tables/ of one moment or kbq reconcile --topic {TOPIC}"
)


@pytest.fixture
def extracted(world: FakePlatform, run: Shell) -> Shell:
    """Three good records, committed."""
    world.produce(3)
    run.done("extract")
    return run


def _damage(world: FakePlatform) -> None:
    def miscount(commit: Commit) -> Commit:
        found = commit.partitions[0]
        totals = found.totals + Counts(positions=1, gaps=1)
        return commit.with_partition(0, dataclasses.replace(found, totals=totals))

    state.change(world.store, Commit, f"commits/{TOPIC}.json", miscount)


def test_all_is_well(extracted: Shell) -> None:
    extracted.done("load")
    document = extracted.json("check", "--counts")
    assert (document["failed"], document["unknown"], document["holds"]) == (0, {}, [])
    assert {result["check"] for result in document["checks"]} == set(CHECKS) - {BATCHES_APPLY}
    text = extracted.done("check")
    assert "the warehouse's rows were not counted; --counts counts them" in text
    assert COUNTS_AGREE not in text


def test_a_failure_is_shown_with_its_commands_and_what_waits(world: FakePlatform, extracted: Shell) -> None:
    _damage(world)
    result = extracted("check")
    assert result.exit_code == 1
    assert (
        f"error: offsets_contiguous: {TOPIC}: {TOPIC}[0]: 4 positions are counted in [0, 3)" in result.stdout
    )
    assert (
        f"  next: kbq reconcile --topic {TOPIC}\n  its files are not loaded until this passes"
        in result.stdout
    )
    [failed] = [r for r in json.loads(extracted("check", "--json").stdout)["checks"] if not r["passed"]]
    assert (failed["check"], failed["severity"], failed["holds"]) == ("offsets_contiguous", "error", True)


def test_what_is_held_is_reported_by_plan_status_and_load(world: FakePlatform, extracted: Shell) -> None:
    _damage(world)
    assert f"blocked: shop.orders: {BLOCKED}" in extracted.done("plan", "load")
    assert extracted.json("plan", "load")["load"] == {
        "held": [{"table": "shop.orders", "rows": 3, "message": BLOCKED}],
        "batches": [],
        "changes": [],
        "refused": {},
        "unavailable": {},
        "failed": {},
    }
    assert f"blocked: shop.orders: {BLOCKED}" in extracted.done("status")
    assert "0 stopped, 0 parked, 1 blocked" in extracted.done("status")
    [table] = extracted.json("status")["tables"]
    assert (table["state"], table["held_rows"], table["pending_rows"]) == ("blocked", 3, 3)
    loaded = extracted("load")
    assert (loaded.exit_code, f"blocked: shop.orders: {BLOCKED}" in loaded.stdout) == (1, True)


def test_the_source_list_lets_a_held_topic_go_on(world: FakePlatform, extracted: Shell) -> None:
    _damage(world)
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders blocking=none\n")
    assert "loaded 3 rows into 1 table in" in extracted.done("load")
    assert extracted("check").exit_code == 1


def test_a_broker_that_is_away_is_unknown_not_wrong(world: FakePlatform, extracted: Shell) -> None:
    world.kafka.down = True
    result = extracted("check")
    assert result.exit_code == 75
    assert (
        "unknown: no_partition_is_stopped, no_backup_is_stopped, lag_is_short, data_is_fresh: the broker is down"
        in result.stdout
    )
    assert extracted("check", "--json").exit_code == 75


def test_a_count_that_differs_fails(world: FakePlatform, extracted: Shell) -> None:
    extracted.done("load")
    rows = next(iter(world.warehouse.stored.values())).rows
    rows.append(rows[0])
    assert extracted("check").exit_code == 0
    result = extracted("check", "--counts")
    assert result.exit_code == 1
    assert "error: warehouse_counts_agree: all tables: " in result.stdout
