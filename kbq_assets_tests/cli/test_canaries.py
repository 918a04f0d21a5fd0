"""Secrets in every setting that may contain one: no command prints them."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from kbq_assets.definitions import command_line
from kbq_assets_tests.fakes.platform import GOOD, POISON, FakePlatform

CANARY = "canary-5f0c"
ENVIRON = {
    "KBQ_REGISTRY_URL": f"https://me:{CANARY}@registry.example",
    "KBQ_REGISTRY_PASSWORD": CANARY,
    "KBQ_REGISTRY_TOKEN": CANARY,
    "KBQ_REGISTRY_KEY_PASSWORD": CANARY,
    "KBQ_KAFKA_BOOTSTRAP_SERVERS": f"SASL_SSL://me:{CANARY}@127.0.0.1:1",
    "KBQ_KAFKA_SASL_PASSWORD": CANARY,
    "KBQ_KAFKA_SASL_PASWORD": CANARY,  # misspelled
    "KBQ_KAFKA_SSL_KEY_PEM": CANARY,
    "KBQ_SPARK_CONF_spark.executorEnv.DB": CANARY,
    "KBQ_SPARK_CONF_spark.hadoop.metastore": f"jdbc:oracle:thin:me/{CANARY}@db",
    "KBQ_SPARK_CONF_spark.hadoop.fs.s3a.secret.key": CANARY,
    "KBQ_DAGSTER_POSTGRES_URL": f"postgresql://me:{CANARY}@db/dagster",
    "KBQ_NOTIFY": f"webhook:https://hooks.example/{CANARY}",
    "KBQ_WEBHOOK_SECRET": CANARY,
}
#: They serve until they are interrupted, write or fetch hundreds of megabytes, or start programs.
NOT_HERE = {"ui", "serve", "pack", "demo", "local"}
DISGUISES = {CANARY.encode(), base64.b64encode(CANARY.encode()), base64.b64encode(f"me:{CANARY}".encode())}


def commands(group: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """Every command below a group, by its words."""
    if not isinstance(group, click.Group):
        yield path
        return
    with click.Context(group) as context:
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            if found is not None and name not in NOT_HERE:
                yield from commands(found, *path, name)


COMMANDS = list(commands(command_line()))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> FakePlatform:
    world = FakePlatform(tmp_path_factory.mktemp("canaries"), environ=ENVIRON)
    for value in (GOOD, POISON):
        world.produce(value=value)
    return world


@pytest.mark.usefixtures("current_folder")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_a_secret(command: tuple[str, ...], world: FakePlatform) -> None:
    for more in ([], ["--json"], ["--yes"]):
        arguments = ["--debug", *command, *more]
        result = CliRunner().invoke(command_line(), arguments, obj=world.reopened, input="y\n")
        if isinstance(result.exception, Exception):
            raise result.exception
        output = f"{result.output}{result.stderr}".encode()
        assert [each for each in DISGUISES if each in output] == [], output.decode()


def test_all_commands_are_tried_and_settings_are_shown(world: FakePlatform) -> None:
    assert {("doctor",), ("settings",), ("extract",), ("load",), ("status",), ("check",)} <= set(COMMANDS)
    shown = CliRunner().invoke(command_line(), ["settings", "--json"], obj=world.reopened).output
    assert "KBQ_KAFKA_SASL_PASWORD" in shown
    assert "https://***@registry.example" in shown
