"""`kbq init`: a folder's settings, catalog and first checks, from options."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from kbq_assets.adapters.settings_file import read_settings
from kbq_assets.core.catalog.changes import LiveTopic
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import Unavailable
from kbq_assets.definitions import Adapters, Parts, command_line
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.contracts.topic_admin import order
from kbq_assets_tests.fakes.platform import FakePlatform, with_ports

WAREHOUSE = "duckdb:tables.duckdb"
INIT = ("init", "--company", "shop", "--domain", "sales", "--team", "sales", "--warehouse", WAREHOUSE)


@pytest.fixture
def init(world: FakePlatform, tmp_path: Path) -> Iterator[Shell]:
    """`kbq` in an empty folder. Settings are read as in a separate process."""
    folder = tmp_path / "new"
    folder.mkdir()
    world.topic_admin.live = {
        "shop.orders": LiveTopic(2, 1),
        "clicks": LiveTopic(1, 1),
        "_tool": LiveTopic(1, 1),
    }
    world.subjects.register("shop.orders-value", order("a"), "AVRO")

    class Fresh(Shell):
        def __call__(self, *args: str, answer: str | None = None):  # type: ignore[no-untyped-def]
            def opened() -> Parts:
                parts = Parts(Adapters(parse_settings(read_settings({}))))
                return with_ports(
                    parts, topic_admin=lambda: world.topic_admin, subjects=lambda: world.subjects
                )

            return CliRunner().invoke(command_line(), args, obj=opened, input=answer)

    with contextlib.chdir(folder):
        yield Fresh(world)


def test_init_writes_settings_catalog_and_checks_and_validates(init: Shell) -> None:
    init.done(*INIT, "--topic", "shop.orders", "--topic", "clicks")
    assert Path("kbq.toml").read_text().splitlines()[1:] == [
        f'KBQ_WAREHOUSE = "{WAREHOUSE}"',
        'KBQ_SOURCE_TOPICS = "catalog"',
    ]
    assert "checks:" in Path("catalog/defaults.yaml").read_text()
    assert init.done("catalog", "validate") == "2 entries, environments: prod; no mistake\n"
    found = {each["topic"]: each for each in json.loads(init.done("catalog", "show", "--json"))}
    assert {topic: (each["archived"], each["tables"]) for topic, each in found.items()} == {
        "shop.orders": (True, "sales.shop_orders"),
        "clicks": (True, "sales.clicks"),
    }
    assert found["clicks"]["entry"]["records"] == {"json": "columns"}


def test_init_keeps_what_is_there_and_archives_only_what_was_named(init: Shell) -> None:
    init.done(*INIT)
    entry = Path("catalog/shop/sales/clicks/prod/topic.yaml")
    assert "consumers: []" in entry.read_text()
    entry.write_text("description: mine")
    again = init(*INIT, "--topic", "clicks", "--topic", "nothing")
    assert "kept kbq.toml" in again.output and "left out: nothing: not on the broker" in again.output
    assert (again.exit_code, entry.read_text()) == (1, "description: mine")


def test_init_says_what_is_missing_if_no_topic_was_chosen(init: Shell) -> None:
    shown = init.done(*INIT)
    assert "next: add archiver to the consumers of the topics to load" in shown
    assert "add archiver" not in init.done(*INIT, "--topic", "clicks")


def test_init_asks_in_a_terminal_if_no_option_is_given(init: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbq_assets.extras.catalog.start._is_terminal", lambda: True)
    places = ("", "", "", WAREHOUSE)  # Kafka, registry, staging, warehouse
    names = ("shop", "sales", "prod", "sales", "clicks shop.orders")
    assert init("init", answer="\n".join([*places, *names]) + "\n").exit_code == 0
    found = json.loads(init.done("catalog", "show", "--json"))
    assert {each["topic"]: each["archived"] for each in found} == {"clicks": True, "shop.orders": True}


def test_init_asks_nothing_in_a_terminal_if_an_option_is_given(
    init: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbq_assets.extras.catalog.start._is_terminal", lambda: True)
    init.done(*INIT, "--topic", "clicks")
    assert '"prod"' in init.done("catalog", "show", "clicks", "--json")


@pytest.mark.usefixtures("current_folder")
def test_true_and_false_of_toml_are_settings() -> None:
    Path("kbq.toml").write_text("KBQ_BACKUP = true\n")
    assert parse_settings(read_settings({})).backup.topics == "true"


def test_another_team_s_init_keeps_the_entries_of_the_first_and_names_its_own_team(
    init: Shell, world: FakePlatform
) -> None:
    init.done(*INIT, "--topic", "shop.orders", "--topic", "clicks")
    world.topic_admin.live["billing.invoices"] = LiveTopic(1, 1)
    billing = ("--company", "shop", "--domain", "billing", "--team", "billing", "--topic", "billing.invoices")
    shown = init.done("init", *billing)
    assert "kept catalog/shop/sales/shop-orders/prod/topic.yaml, the entry of shop.orders" in shown
    assert [each.name for each in Path("catalog/shop/billing").iterdir()] == ["billing-invoices"]
    assert init.done("catalog", "validate") == "3 entries, environments: prod; no mistake\n"
    found = {each["topic"]: each for each in json.loads(init.done("catalog", "show", "--json"))}
    assert found["billing.invoices"]["entry"]["ownership"] == {"team": "billing"}
    catalog_init = ("catalog", "init", "catalog", "--company", "shop", "--domain", "other")
    assert init.done(*catalog_init).splitlines()[-2].startswith("0 topics")


def test_init_refuses_settings_that_another_variable_overrides(
    init: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("kbq.toml").write_text(f'KBQ_SOURCE_TOPICS = "other"\nKBQ_WAREHOUSE = "{WAREHOUSE}"\n')
    refused = init(*INIT)
    assert refused.exit_code == 1
    assert "not the new catalog" in refused.output
    assert not Path("catalog").exists()


def test_init_refuses_an_option_that_the_existing_settings_do_not_have(init: Shell) -> None:
    init.done(*INIT)
    before = Path("kbq.toml").read_text()
    for option, variable in (
        ("--bootstrap-servers", "KBQ_KAFKA_BOOTSTRAP_SERVERS"),
        ("--staging", "KBQ_STAGING"),
    ):
        refused = init(*INIT, option, "elsewhere:9092")
        assert refused.exit_code == 1
        assert f"kbq.toml exists, and does not set {variable} to elsewhere:9092" in refused.output
        assert "edit kbq.toml, or delete it and run kbq init again" in refused.output
    assert Path("kbq.toml").read_text() == before


def test_init_leaves_no_settings_that_cannot_be_used(init: Shell) -> None:
    wrong = init("init", "--warehouse", "bigquery://shop-prod")
    assert wrong.exit_code == 1 and "BigQuery cannot load files of a local folder" in wrong.output
    assert not Path("kbq.toml").exists()
    init.done(*INIT)


@pytest.mark.parametrize(
    "what", [Unavailable("Kafka does not answer"), KeyboardInterrupt()], ids=["error", "Ctrl-C"]
)
def test_init_without_a_broker_leaves_nothing_so_the_next_one_may_name_another(
    init: Shell, world: FakePlatform, monkeypatch: pytest.MonkeyPatch, what: BaseException
) -> None:
    def topics() -> NoReturn:
        raise what

    with monkeypatch.context() as silent:
        silent.setattr(world.topic_admin, "topics", topics)
        ended = init(*INIT, "--bootstrap-servers", "mistyped:9092")
    assert ended.exit_code != 0 and "wrote" not in ended.output
    assert list(Path().iterdir()) == []
    init.done(*INIT, "--bootstrap-servers", "right:9092", "--topic", "clicks")
    assert read_settings({})["KBQ_KAFKA_BOOTSTRAP_SERVERS"] == "right:9092"


def test_init_without_a_broker_keeps_settings_that_were_there(
    init: Shell, world: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def topics() -> NoReturn:
        raise Unavailable("Kafka does not answer")

    Path("kbq.toml").write_text(before := f'KBQ_WAREHOUSE = "{WAREHOUSE}"\nKBQ_SOURCE_TOPICS = "catalog"\n')
    monkeypatch.setattr(world.topic_admin, "topics", topics)
    assert init(*INIT).exit_code == 75
    assert Path("kbq.toml").read_text() == before
