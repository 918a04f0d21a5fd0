"""What KBQ must not guess stops its partition. The stop reports the range and the commands, which then resume it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from kbq_assets.core.errors import Refused, Unavailable
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.operate.commands import StartAt
from kbq_assets_tests.fakes.registry_server import Answer, registry_server
from kbq_assets_tests.integration.world import Producers, Registered, World

pytestmark = pytest.mark.kafka

ROW = "row:shop.orders"


def _orders(order: Registered, count: int) -> list[bytes]:
    return [order.value(x=n) for n in range(count)]


def test_a_retention_loss_stops_until_the_gap_is_accepted(world: World) -> None:
    order, tp = world.producers.register(("x", "long")), world.topic()
    world.producers.produce(tp, _orders(order, 10), ROW)
    world.finish()
    world.producers.produce(tp, _orders(order, 10), ROW)
    world.broker.delete_before(tp, 15)
    stop = world.stopped()
    assert stop.reason == "retention_loss"
    assert f"{tp}: positions [10, 15)" in stop.message
    assert [c.split()[1] for c in stop.commands] == ["accept-gap", "reset"]
    assert world.stopped().reason == "retention_loss"  # never on its own
    proposal = operate.propose_accept_gap(world.parts.deployment.store, world.parts.deployment.offsets, tp)
    assert proposal.lines == (f"gives up {tp} [10, 15): 5 positions",)
    proposal.apply()
    world.producers.log[tp] = {o: x for o, x in world.producers.log[tp].items() if o not in range(10, 15)}
    result = world.finish()
    assert result.totals()["loaded"] == 15
    assert result.partitions[0].lost == 5


def test_a_retention_loss_is_recorded_where_the_topic_says_so(world: World) -> None:
    order = world.producers.register(("x", "long"))
    tp = world.topic("dataset=shop table=orders on_retention_loss=record")
    world.producers.produce(tp, _orders(order, 10), ROW)
    world.finish()
    world.producers.produce(tp, _orders(order, 10), ROW)
    world.broker.delete_before(tp, 15)
    world.producers.log[tp] = {o: x for o, x in world.producers.log[tp].items() if o not in range(10, 15)}
    assert world.finish().partitions[0].lost == 5


def test_a_stopped_partition_does_not_stop_the_others(world: World) -> None:
    order, tp = world.producers.register(("x", "long")), world.topic(partitions=2)
    other = TopicPartition(tp.topic, 1)
    for each in (tp, other):
        world.producers.produce(each, _orders(order, 5), ROW)
    world.finish()
    world.producers.produce(tp, _orders(order, 5), ROW)
    world.producers.produce(other, _orders(order, 5), ROW)
    world.broker.delete_before(tp, 7)
    assert world.stopped().topic_partition == tp
    world.load()
    assert world.partition(other).next == 10
    result = world.parts.reconciler.reconcile()
    assert [finding for account in result.partitions for finding in account.findings] == []
    assert not result.accounted, "a partition is stopped"


def test_a_recreated_topic_stops_until_it_is_reset_and_then_counts_a_new_epoch(world: World) -> None:
    order, tp = world.producers.register(("x", "long")), world.topic()
    world.producers.produce(tp, _orders(order, 10), ROW)
    world.finish()
    world.broker.recreate_topic(tp.topic)
    world.producers.forget(tp, 10)
    world.producers.produce(tp, _orders(order, 12), ROW)
    stop = world.stopped()
    assert stop.reason == "recreated"
    assert stop.commands == (f"kbq reset --topic {tp.topic}",)
    proposal = operate.propose_reset(world.parts.deployment.store, world.parts.deployment.offsets, tp.topic)
    assert proposal.lines == ("epoch 1 -> 2", f"{tp}: position 10 -> 0")
    proposal.apply()
    assert world.finish().totals()["loaded"] == 12
    rows = world.query(
        "SELECT _kbq_epoch, count(*), count(DISTINCT _kafka_offset) FROM shop.orders GROUP BY 1"
    )
    assert sorted(rows) == [(1, 10, 10), (2, 12, 12)]


def test_a_reset_refuses_while_rows_wait_to_be_loaded(world: World) -> None:
    order, tp = world.producers.register(("x", "long")), world.topic()
    world.producers.produce(tp, _orders(order, 10), ROW)
    world.extract()
    with pytest.raises(Refused, match="wait to be loaded"):
        operate.propose_reset(world.parts.deployment.store, world.parts.deployment.offsets, tp.topic)
    world.load()
    operate.propose_reset(
        world.parts.deployment.store, world.parts.deployment.offsets, tp.topic, start=StartAt("latest")
    ).apply()
    world.producers.forget(tp, 10)
    world.producers.produce(tp, _orders(order, 3), ROW)
    world.finish()
    rows = world.query("SELECT _kbq_epoch, min(_kafka_offset), count(*) FROM shop.orders GROUP BY 1")
    assert sorted(rows) == [(1, 0, 10), (2, 10, 3)]


def test_added_partitions_start_at_their_earliest_offset(world: World) -> None:
    order = world.producers.register(("x", "long"))
    # Not even where the topic itself began at its end.
    tp = world.topic("dataset=shop table=orders start=latest")
    world.producers.produce(tp, _orders(order, 5), ROW)
    world.extract()
    world.producers.forget(tp, 5)
    world.broker.add_partitions(tp.topic, 3)
    added = [TopicPartition(tp.topic, 1), TopicPartition(tp.topic, 2)]
    for each in (tp, *added):
        world.producers.produce(each, _orders(order, 4), ROW)
    assert world.finish().totals()["loaded"] == 12
    assert [world.partition(each).start for each in (tp, *added)] == [5, 0, 0]


def test_a_new_topic_that_a_pattern_matches_is_picked_up_without_help(world: World) -> None:
    order, family = world.producers.register(("x", "long")), f"shop.{uuid.uuid4().hex[:12]}"
    world.sources = f"{family}.v? dataset=shop table=orders\n"
    for count, name in enumerate(("v1", "v2", "other"), 1):
        topic = world.broker.create_topic(name=f"{family}.{name}")
        if name != "other":
            world.producers.produce(TopicPartition(topic, 0), _orders(order, count), ROW)
        result = world.finish()
    assert result.topics == [f"{family}.v1", f"{family}.v2"]
    assert result.totals()["loaded"] == 1 + 2


def test_an_unknown_schema_stops_at_its_record_and_goes_on_after_the_command(world: World) -> None:
    order, tp = world.producers.register(("x", "long")), world.topic()
    world.producers.produce(tp, _orders(order, 5), ROW)
    unknown = b"\x00" + (999_999_999).to_bytes(4, "big") + b"\x02"
    world.producers.produce(tp, [unknown], "error")
    world.producers.produce(tp, _orders(order, 5), ROW)
    stop = world.stopped()
    assert stop.reason == "unknown_schema"
    assert "offset 5" in stop.message
    assert [c.split()[1] for c in stop.commands] == ["resume", "resume"]
    assert world.partition(tp).next == 5
    assert world.load().rows == 5
    operate.propose_resume(world.parts.deployment.store, tp.topic).apply()
    assert world.stopped().reason == "unknown_schema"  # the registry still does not know it
    operate.propose_resume(world.parts.deployment.store, tp.topic, as_errors=True).apply()
    assert world.finish().totals() == {
        "produced": 11,
        "staged": 10,
        "loaded": 10,
        "errors": 1,
        "skipped": 0,
    }


@pytest.mark.thorough
def test_the_command_loads_what_precedes_an_unknown_schema_and_the_rest_once_it_is_registered(
    producers: Producers, tmp_path: Path
) -> None:
    order = producers.register(("x", "long"))
    schema = Answer.of({"schema": json.dumps(order.schema)})
    late = Registered(order.schema_id + 1, order.schema)
    with registry_server({f"/schemas/ids/{order.schema_id}": schema}) as registry:
        world = World(tmp_path / "home", producers, environ={"KBQ_REGISTRY_URL": registry.url})
        tp = world.topic()
        for each in (order, late, order):
            producers.produce(tp, _orders(each, 5), ROW)

        def kbq(*arguments: str) -> subprocess.CompletedProcess[str]:
            program = [sys.executable, "-c", "from kbq_assets.definitions import main; main()", *arguments]
            environ = {**os.environ, **world.environ, "KBQ_SPARK_MASTER": "local[1]"}
            environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
            return subprocess.run(
                program, cwd=world.folder, env=environ, capture_output=True, text=True, check=False
            )

        stopped = kbq("extract")
        assert stopped.returncode == 1, stopped.stderr
        assert "unknown_schema" in stopped.stdout and "offset 5" in stopped.stdout
        assert kbq("load").returncode == 0
        offsets = "SELECT _kafka_offset FROM shop.orders ORDER BY 1"
        assert world.query(offsets) == [(offset,) for offset in range(5)]
        registry.answers[f"/schemas/ids/{late.schema_id}"] = schema
        for command in (["resume", "--topic", tp.topic, "--yes"], ["extract"], ["load"]):
            ran = kbq(*command)
            assert ran.returncode == 0, ran.stdout + ran.stderr
        assert world.query(offsets) == [(offset,) for offset in range(15)]
        assert world.reconciled().totals()["loaded"] == 15


def test_too_many_errors_stop_before_the_commit_and_may_be_accepted(world: World) -> None:
    order = world.producers.register(("x", "long"))
    tp = world.topic("dataset=shop table=orders error_share=0.2 error_share_records=10")
    world.producers.produce(tp, _orders(order, 7), ROW)
    world.producers.produce(tp, [b"\x01bad"] * 3, "error")
    stop = world.stopped()
    assert (stop.reason, world.partition(tp).next) == ("error_share", 0)
    assert "3 of 10" in stop.message
    operate.propose_resume(world.parts.deployment.store, tp.topic, as_errors=True).apply()
    assert world.finish().totals()["errors"] == 3
    # What comes after the accepted range is checked again.
    world.producers.produce(tp, [b"\x01bad"] * 10, "error")
    assert world.stopped().reason == "error_share"


def test_the_fail_policy_stops_at_the_first_bad_record(world: World) -> None:
    order = world.producers.register(("x", "long"))
    tp = world.topic("dataset=shop table=orders errors=fail")
    world.producers.produce(tp, _orders(order, 3), ROW)
    world.producers.produce(tp, [b"\x01bad"], "error")
    stop = world.stopped()
    assert (stop.reason, "offset 3" in stop.message) == ("bad_record", True)
    operate.propose_resume(world.parts.deployment.store, tp.topic, as_errors=True).apply()
    assert world.finish().totals()["loaded"] == 3


def test_a_registry_that_is_down_fails_the_window_and_loses_nothing(world: World) -> None:
    order, tp = world.producers.register(("x", "long")), world.topic()
    world.producers.produce(tp, _orders(order, 5), ROW)
    report = world.reopened(KBQ_REGISTRY_URL="http://127.0.0.1:1").extractor.extract()
    assert (report.stops, list(report.failures)) == ((), [tp])
    assert world.partition(tp).next == 0
    assert world.finish().totals()["loaded"] == 5


def test_a_broker_that_is_down_fails_the_run_and_loses_nothing(world: World) -> None:
    order, tp = world.producers.register(("x", "long")), world.topic()
    world.producers.produce(tp, _orders(order, 5), ROW)
    world.extract()
    with pytest.raises(Unavailable):
        world.reopened(offsets_seconds=1, KBQ_KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1").extractor.extract()
    assert world.load().rows == 5  # loading needs no broker
    world.finish()
