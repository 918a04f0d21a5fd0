"""kbq settings: every variable, its meaning and origin, and no secret. Typos are reported wherever they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kbq_assets.adapters.kafka import options
from kbq_assets.adapters.settings_file import remember_ports
from kbq_assets.cli.settings import HIDDEN, effective
from kbq_assets.core.config.redaction import REDACTED
from kbq_assets.core.config.settings import VARIABLES, parse_settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.definitions import command_line, parts
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import FakePlatform


class Folder:
    """`kbq settings` in a folder with a kbq.toml."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def run(self, *arguments: str, file: str = "", **environ: str) -> Result:
        """Run it with the text of kbq.toml, none for "", and with variables."""
        if file:
            (self.place / "kbq.toml").write_text(file)
        return CliRunner().invoke(command_line(), ["settings", *arguments], obj=lambda: parts(environ))

    def rows(self, *arguments: str, file: str = "", **environ: str) -> dict[str, Any]:
        """Value and origin of each variable."""
        found = self.run("--json", *arguments, file=file, **environ)
        return {each["name"]: (each["value"], each["from"]) for each in json.loads(found.stdout)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


def test_every_variable_is_listed_with_its_value(run: Shell, world: FakePlatform) -> None:
    listed = {entry["name"]: entry for entry in run.json("settings")}
    assert listed.keys() == VARIABLES.keys()
    assert listed["KBQ_SOURCE_TOPICS"]["value"] == str(world.source_topics)
    assert all(entry["meaning"] for entry in listed.values())
    printed = run.done("settings")
    assert all(name in printed for name in VARIABLES)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("KBQ_REGISTRY_PASSWORD", "hunter2", HIDDEN),
        ("KBQ_REGISTRY_TOKEN", "hunter2", HIDDEN),
        ("KBQ_REGISTRY_PASSWORD", "env:REGISTRY_PASSWORD", "env:REGISTRY_PASSWORD"),
        ("KBQ_REGISTRY_TOKEN", "file:/run/token", "file:/run/token"),
        ("KBQ_REGISTRY_USERNAME", "kbq", "kbq"),
        ("KBQ_REGISTRY_URL", "https://me:hunter2@registry:8081", f"https://{REDACTED}@registry:8081"),
        ("KBQ_KAFKA_SASL_PASSWORD", "hunter2", HIDDEN),
        ("KBQ_KAFKA_SASL_MECHANISM", "PLAIN", "PLAIN"),
        ("KBQ_KAFKA_SSL_KEY_LOCATION", "/etc/key.pem", "/etc/key.pem"),
        ("KBQ_KAFKA_SSL_KEY_PEM", "hunter2", HIDDEN),
        ("KBQ_SPARK_CONF_spark.hadoop.fs.s3a.secret.key", "hunter2", HIDDEN),
        ("KBQ_SPARK_CONF_spark.executor.memory", "2g", "2g"),
        ("KBQ_STAGING", "gs://bucket/prefix", "gs://bucket/prefix"),
        # Malformed addresses and misspelled options
        ("KBQ_REGISTRY_URL", "http://me:hun/ter2,@x@registry", f"http://{REDACTED}@registry"),
        ("KBQ_REGISTRY_URL", "me:hunter2@registry:8081", f"{REDACTED}@registry:8081"),
        ("KBQ_KAFKA_BOOTSTRAP_SERVERS", "SASL://me:hunter2@a:1", f"SASL://{REDACTED}@a:1"),
        ("KBQ_KAFKA_SASL_PASWORD", "hunter2", HIDDEN),
        ("KBQ_KAFKA_SALS_MECHANISM", "hunter2", HIDDEN),
        ("KBQ_SPARK_CONF_spark.hadoop.dbPasword", "hunter2", HIDDEN),
        ("KBQ_SPARK_CONF_spark.executorEnv.DB", "hunter2", HIDDEN),
        ("KBQ_SPARK_CONF_spark.driver.extraJavaOptions", "-Dx=1 -Ddb.password=hunter2", HIDDEN),
        ("KBQ_SPARK_CONF_spark.hadoop.metastore", "jdbc:oracle:thin:me/hunter2@db", HIDDEN),
    ],
)
def test_values_are_shown_and_secrets_are_not(name: str, value: str, shown: str) -> None:
    assert effective(parse_settings({name: value}))[name] == shown


@pytest.mark.parametrize("option", sorted(options.ALLOWED))
def test_an_option_that_the_kafka_adapter_hides_is_hidden_here(option: str) -> None:
    hidden = options.redacted({option: "hunter2"})[option] != "hunter2"
    name = f"KBQ_KAFKA_{option.upper().replace('.', '_')}"
    assert (effective(parse_settings({name: "hunter2"}))[name] == HIDDEN) >= hidden


def test_the_list_is_shown_even_when_a_variable_is_wrong(world: FakePlatform) -> None:
    def open_parts() -> FakePlatform:
        raise ConfigurationError("unknown variable KBQ_HOM", next_step="did you mean KBQ_HOME?")

    result = CliRunner().invoke(command_line(), ["settings"], obj=open_parts)
    assert result.exit_code == 1
    assert "KBQ_HOME" in result.stdout
    assert "did you mean KBQ_HOME?" in result.stderr


def test_each_value_says_where_it_is_set(folder: Folder) -> None:
    remember_ports(folder.place / ".kbq", {"kafka_port": 1111, "registry_port": 2222})
    file = 'KBQ_DATASET = "filed"\nKBQ_ENV = "filed"\nKBQ_LOCAL_REGISTRY_PORT = 3333\n'
    rows = folder.rows(file=file, KBQ_ENV="prod", KBQ_RUN_SECONDS="60")
    assert rows.keys() == VARIABLES.keys()
    assert rows["KBQ_RUN_SECONDS"] == ("60", "environment")
    assert rows["KBQ_DATASET"] == ("filed", "kbq.toml")
    assert rows["KBQ_ENV"] == ("prod", "environment, not kbq.toml")
    assert rows["KBQ_LOAD_WAIT_SECONDS"] == ("600", "default")
    assert rows["KBQ_LOCAL_KAFKA_PORT"] == ("1111", "kbq local up")
    assert rows["KBQ_LOCAL_REGISTRY_PORT"] == ("3333", "kbq.toml")
    assert rows["KBQ_SETTINGS"] == (str(folder.place / "kbq.toml"), "default")


def test_the_file_that_a_variable_names_is_the_origin(folder: Folder) -> None:
    other = folder.place / "conf" / "prod.toml"
    other.parent.mkdir()
    other.write_text('KBQ_DATASET = "filed"\n"KBQ_SPARK_CONF_spark.executor.memory" = "2g"\n')
    rows = folder.rows("--set", KBQ_SETTINGS="conf/prod.toml")
    assert rows == {
        "KBQ_DATASET": ("filed", "conf/prod.toml"),
        "KBQ_SETTINGS": (str(other), "environment"),
        "KBQ_SPARK_CONF_spark.executor.memory": ("2g", "conf/prod.toml"),
    }


def test_only_what_is_set_is_listed_and_a_secret_shows_that_it_is(folder: Folder) -> None:
    found = folder.run(
        "--set",
        file='KBQ_REGISTRY_TOKEN = "hunter2"\n',
        KBQ_KAFKA_SASL_PASSWORD="hunter3",
        KBQ_REGISTRY_PASSWORD="env:REGISTRY_PASSWORD",
        HOME="/root",
    )
    assert found.exit_code == 0
    rows = [line.split("  ") for line in found.stdout.splitlines()]
    shown = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()][:2] for row in rows[1:]}
    assert shown == {
        "KBQ_KAFKA_SASL_PASSWORD": ["set", "environment"],
        "KBQ_REGISTRY_PASSWORD": ["env:REGISTRY_PASSWORD", "environment"],
        "KBQ_REGISTRY_TOKEN": ["set", "kbq.toml"],
    }


def test_every_typo_is_named_with_its_file_and_what_is_right_is_shown_all_the_same(folder: Folder) -> None:
    file = 'KBQ_DATASET = "filed"\nKBQ_STAGNIG = "hunter2"\n'
    found = folder.run("--set", file=file, KBQ_WAREHOSE="hunter2", KBQ_XYZ="hunter2")
    assert found.exit_code == 1
    assert "filed" in found.stdout
    assert "hunter2" not in found.output
    assert "unknown variables KBQ_STAGNIG in kbq.toml, KBQ_WAREHOSE, KBQ_XYZ" in found.stderr
    assert "did you mean KBQ_STAGING, KBQ_WAREHOUSE?" in found.stderr


def test_typos_next_to_a_malformed_value_are_named(folder: Folder) -> None:
    found = folder.run(KBQ_WAREHOSE="x", KBQ_RUN_SECONDS="hunter2")
    assert (found.exit_code, "hunter2" in found.output) == (1, False)
    assert "did you mean KBQ_WAREHOUSE?" in found.stderr
    assert "KBQ_STAGING" in found.stdout


def test_options_that_no_kafka_client_takes_are_named(folder: Folder) -> None:
    found = folder.run("--set", KBQ_KAFKA_SALS_MECHANISM="PLAIN", KBQ_KAFKA_GROUP_ID="mine")
    assert found.exit_code == 1
    assert "unknown Kafka option sals.mechanism\n  next: did you mean sasl.mechanism?" in found.stderr
    assert "the Kafka option group.id cannot be set" in found.stderr


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("staging = 'x'", "kbq.toml: staging is not a setting\n  next: did you mean KBQ_STAGING?"),
        ("kbq_staging = 'x'", "kbq.toml: kbq_staging is not a setting\n  next: did you mean KBQ_STAGING?"),
        ("KBQ_SPARK_CONF_spark.executor.memory = '2g'", "write the whole name in quotes"),
        ("KBQ_STAGING = ['x']", "KBQ_STAGING is not a setting\n  next: `kbq settings` lists the variables"),
        ("zzz = 'x'", "zzz is not a setting\n  next: `kbq settings` lists the variables"),
    ],
)
def test_a_key_of_the_file_that_is_no_setting_says_what_was_meant(
    folder: Folder, key: str, message: str
) -> None:
    found = folder.run(file=f"{key}\n")
    assert found.exit_code == 1
    assert message in found.stderr
