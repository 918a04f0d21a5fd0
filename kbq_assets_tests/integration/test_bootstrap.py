"""A topic begins where an operator says, or where Kafka BigQuery Express stopped."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.operate import bootstrap
from kbq_assets.pipelines.operate.commands import StartAt
from kbq_assets_tests.integration.world import FIRST_MS, World

pytestmark = pytest.mark.kafka

ROW = "row:shop.orders"


@pytest.fixture
def tp(world: World) -> TopicPartition:
    """A partition of ten records, a millisecond apart."""
    order, tp = world.producers.register(("x", "long")), world.topic()
    world.producers.produce(tp, [order.value(x=n) for n in range(10)], ROW)
    return tp


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (StartAt("earliest"), 0),
        (StartAt("latest"), 10),
        (StartAt("timestamp", FIRST_MS + 4), 4),
        (StartAt("timestamp", FIRST_MS + 10**9), 10),
        (StartAt("offset", 7), 7),
    ],
)
def test_a_topic_begins_where_the_setting_says(
    world: World, tp: TopicPartition, start: StartAt, first: int
) -> None:
    store, offsets = world.parts.deployment.store, world.parts.deployment.offsets
    bootstrap.propose_bootstrap(store, offsets, tp.topic, start).apply()
    assert world.partition(tp).start == first
    world.producers.forget(tp, first)
    assert world.finish().totals()["loaded"] == 10 - first
    with pytest.raises(Refused, match="already has a commit"):
        bootstrap.propose_bootstrap(store, offsets, tp.topic, StartAt("earliest"))


def test_an_offset_that_the_broker_does_not_have_is_refused(world: World, tp: TopicPartition) -> None:
    with pytest.raises(Refused, match="outside"):
        bootstrap.propose_bootstrap(
            world.parts.deployment.store, world.parts.deployment.offsets, tp.topic, StartAt("offset", 11)
        )


@pytest.mark.parametrize(
    "form", ["{topic}.0.shop.orders.{schema}.0.4.done", "{topic}.0.shop.orders.0.4.done"]
)
def test_hand_made_done_files_of_either_form_say_where_to_begin(
    world: World, tp: TopicPartition, form: str
) -> None:
    done = world.folder / "staging" / "done"
    done.mkdir(parents=True)
    (done / form.format(topic=tp.topic, schema=1)).touch()
    stop = world.stopped()
    assert (stop.reason, stop.commands) == (
        "not_bootstrapped",
        (f"kbq bootstrap --topic {tp.topic} --from-done-files",),
    )
    [proposal] = bootstrap.propose_bootstrap_from_done_files(
        world.parts.deployment.store, world.parts.deployment.offsets
    )
    assert proposal.lines == (f"{tp} starts at 5",)
    proposal.apply()
    world.producers.forget(tp, 5)
    assert world.finish().totals()["loaded"] == 5
