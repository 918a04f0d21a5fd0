"""Dashboard and alerts query only existing metrics, and alerts fire for their conditions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kbq_assets.core.config.service import ServiceSettings
from kbq_assets_tests.cli.test_docs import anchors
from kbq_assets_tests.extras.metrics.http import site
from kbq_assets_tests.extras.metrics.scrape import Scrape, parsed
from kbq_assets_tests.fakes.platform import POISON, FakePlatform

DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "kbq.json").read_text(encoding="utf-8"))
RULES = [
    rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
#: Prometheus' own.
OWN = {"up"}


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (rule["expr"] for rule in RULES)


def names(expression: str) -> set[str]:
    """Names of metrics in an expression: words that are followed by no bracket, and are no label or number."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|group_left) \([^)]*\)", " ", expression)
    return set(re.findall(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b(?! *\()|\bup\b", bare)) - {"group_left"}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Scrape:
    """What `/metrics` has of a world with a bit of everything."""
    world = FakePlatform(tmp_path_factory.mktemp("world"))
    world.produce(3)
    world.produce(1, value=POISON)
    world.parts.extractor.extract()
    world.parts.loader.load()
    with site(world.reopened()) as running:
        running.watches.poll()
        running.watches.poll()
        text = running.get("/metrics")[2]
    declared: Scrape = {line.split()[2]: {} for line in text.splitlines() if line.startswith("# TYPE")}
    return {**declared, **parsed(text)}


def test_alertmanager_routes_every_severity_and_silences_by_alerts_that_exist() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "alertmanager.yaml").read_text(encoding="utf-8"))
    route, receivers = config["route"], {receiver["name"] for receiver in config["receivers"]}
    assert {route["receiver"], *(r["receiver"] for r in route["routes"])} == receivers
    assert {rule["labels"]["severity"] for rule in RULES} == {"page", "ticket"}
    matched = re.findall(r'alertname!?="(\w+)"', str(config["inhibit_rules"]))
    assert set(matched) <= {rule["alert"] for rule in RULES}
    assert matched


def test_numbers_are_matched_within_an_instance() -> None:
    """Each warehouse has a `kbq serve` of its own. Prometheus refuses to match the numbers of two without a label, and
    one that is down must silence no other."""
    terraform = (DEPLOY / "terraform" / "monitoring.tf").read_text(encoding="utf-8")
    assert [each for each in (*expressions(), terraform) if re.search(r"\bon *\( *\)", each)] == []
    config = yaml.safe_load((DEPLOY / "prometheus" / "alertmanager.yaml").read_text(encoding="utf-8"))
    assert [rule["equal"] for rule in config["inhibit_rules"]] == [["instance"]]


def test_every_metric_that_is_asked_for_exists(scraped: Scrape) -> None:
    asked = set().union(*map(names, expressions()))
    assert len(asked) > 30
    assert asked - scraped.keys() - OWN == set()


def test_what_pages_is_on_the_dashboard() -> None:
    shown = set().union(
        *(names(each["expr"]) for panel in DASHBOARD["panels"] for each in panel.get("targets", ()))
    )
    paging = set().union(*(names(rule["expr"]) for rule in RULES if rule["labels"]["severity"] == "page"))
    summed = {"kbq_table_parked": "kbq_parked_tables", "kbq_stopped_partitions": "kbq_stopped"}
    conditions = {"kbq_extractable_records", "kbq_loadable_rows"}
    assert {summed.get(name, name) for name in paging - OWN - conditions} - shown == set()


def test_names_are_found_in_expressions() -> None:
    expression = 'sum by (le, topic) (rate(kbq_a_bucket{x="y_z"}[1h])) / on () group_left () kbq_b > up * 2'
    assert names(expression) == {"kbq_a_bucket", "kbq_b", "up"}


def test_every_alert_says_what_to_do_and_is_tested() -> None:
    tested = yaml.safe_load((ALERTS.parent / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    alerts = {rule["alert"] for rule in RULES}
    for case in tested:
        assert {each["alertname"] for each in case["alert_rule_test"]} == alerts
    assert all({"summary", "action", "runbook"} == rule["annotations"].keys() for rule in RULES)
    assert {rule["labels"]["severity"] for rule in RULES} == {"page", "ticket"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_the_runbook_of_an_alert_is_a_section_of_the_documents(rule: dict[str, Any]) -> None:
    path, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor in anchors((DEPLOY.parent / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("alert", ["KbqPartitionStopped", "KbqTableParked", "KbqStateUnreadable"])
def test_a_stop_pages_within_five_minutes(alert: str) -> None:
    [rule] = [rule for rule in RULES if rule["alert"] == alert]
    scraping = yaml.safe_load((ALERTS.parent / "prometheus.yaml").read_text(encoding="utf-8"))["global"]
    routing = yaml.safe_load((ALERTS.parent / "alertmanager.yaml").read_text(encoding="utf-8"))["route"]
    [pages] = [route for route in routing["routes"] if 'severity="page"' in route["matchers"]]
    waits = (rule["for"], scraping["scrape_interval"], scraping["evaluation_interval"], pages["group_wait"])
    poll = ServiceSettings().look_seconds
    assert rule["labels"]["severity"] == "page"
    assert poll + sum(map(seconds, waits)) < 240


def seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def test_panels_have_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def promtool(*arguments: str) -> str:
    """What promtool says; it must agree."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not here: sudo apt-get install prometheus")
    ran = subprocess.run(
        [found, *arguments], cwd=ALERTS.parent, check=False, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.thorough
def test_alerts_fire_for_what_they_are_about_and_for_nothing_else() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yaml")


def test_prometheus_takes_its_configuration() -> None:
    assert "SUCCESS" in promtool("check", "config", "prometheus.yaml")


def test_promtool_finds_nothing_to_say_about_the_metrics(tmp_path: Path) -> None:
    """Kafka BigQuery Express's names are its own, against the conventions; KBQ's keep to them."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not here: sudo apt-get install prometheus")
    world = FakePlatform(tmp_path)
    world.produce(3)
    world.parts.extractor.extract()
    with site(world.reopened()) as running:
        running.watches.poll()
        text = running.get("/metrics")[2]
    ran = subprocess.run(
        [found, "check", "metrics"], input=text, check=False, capture_output=True, text=True, timeout=300
    )
    said = [line for line in ran.stderr.splitlines() if not line.startswith(("gcswriter_", "bqwriter_"))]
    assert (ran.stdout, said) == ("", [])


def test_every_metric_is_documented_and_every_documented_one_exists(scraped: Scrape) -> None:
    text = (DEPLOY.parent / "docs" / "monitoring.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`((?:kbq|gcswriter|bqwriter)_\w+)`", row)}
    suffixes = ("_bucket", "_sum", "_count")
    histograms = {name.removesuffix(s) for name in scraped for s in suffixes if name.endswith(s)} & documented
    served = {name for name in scraped if not any(name == h + s for h in histograms for s in suffixes)}
    assert documented == served
