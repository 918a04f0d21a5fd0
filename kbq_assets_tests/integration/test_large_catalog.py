"""A catalog of 160 topics: validated, applied, served to Dagster, produced to, extracted and loaded."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.reconcile.values import NONE
from kbq_assets.local.demo.broker import register_schema
from kbq_assets_tests.integration.world import Producers, World
from kbq_assets_tests.wire.samples import avro_body, framed

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DOMAINS, TOPICS, RECORDS = 8, 20, 3
#: Of loading the definitions, which takes 1: CPU time, so that a busy machine matters little.
MOST_CPU_SECONDS = 30.0
#: Of judging the catalogue, which takes a tenth of one: the promise, in CPU time.
MOST_JUDGING_SECONDS = 3.0
SCHEMA = {
    "type": "record",
    "name": "Change",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "changed_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def write_catalog(folder: Path, company: str) -> None:
    """Eight domains of twenty topics, which inherit nearly everything."""
    texts = {
        "catalog.yaml": "names: {dataset: '{domain}'}\nrules: {mandatory: [ownership.team], time_fields: '.*_at'}",
        "defaults.yaml": "consumers: [archiver]\nkafka: {partitions: 1}\npartition_time: changed_at",
    }
    for domain in range(DOMAINS):
        texts[f"{company}/domain{domain}/defaults.yaml"] = f"ownership: {{team: team-{domain}}}"
        for topic in range(TOPICS):
            place = f"{company}/domain{domain}/topic{topic}"
            texts[f"{place}/test/topic.yaml"] = f"description: Number {topic} of domain {domain}."
            texts[f"{place}/schemas/value.avsc"] = json.dumps(SCHEMA)
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_160_topics_from_the_catalogue_to_their_tables(producers: Producers, tmp_path: Path) -> None:
    folder, company = tmp_path / "catalog", f"c{tmp_path.name[-6:].replace('_', '').lower()}"
    write_catalog(folder, company)
    world = World(tmp_path / "home", producers, environ={"KBQ_SOURCE_TOPICS": str(folder)})
    began = time.process_time()
    catalog = world.parts.deployment.sources.catalog.catalog()
    assert time.process_time() - began < MOST_JUDGING_SECONDS
    assert (catalog.problems, len(catalog.entries)) == ((), DOMAINS * TOPICS)

    commands = world.parts.catalog_commands
    for proposal in commands.proposals(commands.plan()):
        proposal.apply()
    again = commands.plan()
    assert (again.changes, again.registrations) == ((), ())

    began = time.process_time()
    definitions = world.parts.definitions()
    keys = definitions.resolve_all_asset_keys()
    assert time.process_time() - began < MOST_CPU_SECONDS
    topics = [key for key in keys if key.path[0] == "kafka"]
    pages = [key for key in keys if key.path[0].startswith("domain")]
    assert (len(topics), len(pages)) == (
        DOMAINS * TOPICS,
        DOMAINS * (TOPICS + 1),
    )  # of bad records, one a domain

    for entry in catalog.entries:
        schema_id = register_schema(producers.registry_url, f"{entry.topic}-value", SCHEMA)
        values = [framed(avro_body(SCHEMA, {"id": n, "changed_at": n}), schema_id) for n in range(RECORDS)]
        outcome = f"row:{entry.settings.destination.table_for(entry.topic)}"
        producers.produce(TopicPartition(entry.topic, 0), values, outcome)
    totals = world.finish(NONE).totals()  # comparing values means extracting again
    assert totals["loaded"] == DOMAINS * TOPICS * RECORDS
    assert len(world.parts.observer.tables()) == DOMAINS * TOPICS
