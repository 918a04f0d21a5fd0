"""A mistake stops only the topics of its own entry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kbq_assets.adapters.catalog_files import CatalogFolder
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.catalog.reader import read_catalog, sources

TEXT = "consumers: [archiver]\nkafka: {name: %s}\n"
ORDERS, ITEMS = "shop/sales/orders/prod", "shop/stock/items/prod"
CATALOG = {f"{ORDERS}/topic.yaml": TEXT % "orders", f"{ITEMS}/topic.yaml": TEXT % "items"}
BAD = "priorty: high\n"
SCHEMA = '{"type": "record", "name": "r", "fields": [{"name": "email", "type": "string", "pii": "HIGH"}]}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def entries(folder: Path, changes: Mapping[str, str | bytes]) -> dict[str, SourceEntry]:
    """The sources of the catalog with these files changed, by topic."""
    for path, text in {**CATALOG, **changes}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())
    return {entry.pattern: entry for entry in sources(read_catalog(CatalogFolder(folder).read()), "prod", "")}


def waiting(found: Mapping[str, SourceEntry]) -> set[str]:
    return {topic for topic, entry in found.items() if entry.mistake is not None}


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        (f"{ITEMS}/topic.yaml", TEXT % "items" + "checks: {max_lag: 5}\n", "unknown key 'max_lag'"),
        (f"{ITEMS}/topic.yaml", TEXT % "items" + "pii: {level: HIGH}\n", "without a decision"),
        (f"{ITEMS}/topic.yaml", TEXT % "items" + "loading: {load: upsert}\n", "key"),
        (f"{ITEMS}/topic.yaml", TEXT % "items" + "loading: {load: sql, sql: x.sql}\n", "there is no file"),
        (f"{ITEMS}/schemas/value.avsc", "{", "not JSON"),
        (f"{ITEMS}/schemas/value.avsc", "[" * 100_000, "not JSON"),
        (f"{ITEMS}/schemas/key.avsc", "[" * 100_000, "not JSON"),
        (f"{ITEMS}/../schemas/value.avsc", SCHEMA, "no decision about fields"),
        (f"{ITEMS}/../schemas/value.avsc", b" " * 5_000_000, "larger than 4,194,304 bytes"),
        ("shop/stock/defaults.yaml", BAD, "unknown key 'priorty'"),
        ("shop/stock/defaults.prod.yaml", "[", "not YAML"),
    ],
)
def test_a_mistake_stops_the_topic_whose_entry_has_or_inherits_it(
    folder: Path, path: str, text: str | bytes, why: str
) -> None:
    found = entries(folder, {path: text})
    assert (set(found), waiting(found)) == ({"orders", "items"}, {"items"})
    mistake = found["items"].mistake
    assert mistake is not None
    assert (why in mistake.message, mistake.next_step) == (True, "kbq catalog validate"), mistake
    assert not mistake.hides_name or path.startswith("shop/stock/defaults")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{ITEMS}/topic.yaml", "kafka: ["),
        (f"{ITEMS}/topic.yaml", TEXT % "items" * 2),
        (f"{ITEMS}/topic.yaml", TEXT % "what/ever"),
        (f"{ITEMS}/topic.yaml", "consumers: [archiver]\nkafka: {nam: items}\n"),
        (f"{ITEMS}/topic.yaml", "consumers: [archiver]\nkakfa: {name: items}\n"),
        (f"{ITEMS}/topic.yaml", "[]"),
        ("shop/stock/topic.yaml", ""),
        ("shop/stock/notes.yaml", "a: 1"),
        ("readme.json", "{"),
    ],
)
def test_a_mistake_that_may_be_about_a_name_says_so(folder: Path, path: str, text: str) -> None:
    found = entries(folder, {path: text})
    [wrong] = waiting(found)
    mistake = found[wrong].mistake
    assert mistake is not None
    assert (mistake.hides_name, path in mistake.message) == (True, True)
    assert found["orders"].mistake is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (TEXT % "orders", {"orders"}),
        (TEXT % "items" + "destination: {dataset: kafka, table: ORDERS}", {"items", "orders"}),
    ],
)
def test_of_entries_that_collide_all_stop_since_nobody_knows_which_is_right(
    folder: Path, text: str, wrong: set[str]
) -> None:
    other = "shop/sales/returns/prod/topic.yaml"
    found = entries(folder, {f"{ITEMS}/topic.yaml": text, other: TEXT % "returns"})
    assert waiting(found) == wrong
    assert found["returns"].mistake is None


def test_an_entry_with_a_mistake_of_its_own_takes_no_topic_from_another(folder: Path) -> None:
    entries(folder, {f"{ITEMS}/topic.yaml": TEXT % "orders" + BAD})
    assert read_catalog(CatalogFolder(folder).read()).faults.keys() == {f"{ITEMS}/topic.yaml"}


def test_a_mistake_of_another_environment_or_of_a_topic_that_is_not_read_stops_nothing(folder: Path) -> None:
    unread = "kafka: {name: items}\nchecks: {max_lag: 1}"
    changes = {"shop/stock/items/dev/topic.yaml": BAD, f"{ITEMS}/topic.yaml": unread}
    found = entries(folder, changes)
    assert set(found) == {"orders"}
    assert not waiting(found)


@pytest.mark.parametrize("text", ["names: {tpoic: x}", "["])
def test_a_mistake_in_the_catalog_s_own_file_stops_all(folder: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"catalog.yaml:\d: "):
        entries(folder, {"catalog.yaml": text})


def test_the_only_entry_of_an_environment_may_have_a_mistake(folder: Path) -> None:
    found = entries(folder, {f"{ITEMS}/topic.yaml": "[", f"{ORDERS}/topic.yaml": TEXT % "orders" + BAD})
    assert len(waiting(found)) == len(found) == 2


def test_a_file_that_cannot_be_read_is_a_mistake_of_its_own(folder: Path) -> None:
    (folder / ITEMS).mkdir(parents=True)
    (folder / ITEMS / "topic.yaml").symlink_to("/proc/self/mem")
    catalog = {path: text for path, text in CATALOG.items() if not path.startswith(ITEMS)}
    for path, text in catalog.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text)
    [problem] = CatalogFolder(folder).read().problems
    assert "cannot be read" in str(problem)
