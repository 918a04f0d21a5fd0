"""Settings: embedded defaults, options under their own names, no silent typos, no secrets shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.adapters.settings_file import remember_ports
from kbq_assets.core.config.locations import BigQueryProject, Bucket
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.definitions import parts

GOOGLE = {"KBQ_STAGING": "gs://bucket/staging", "KBQ_WAREHOUSE": "bigquery://my-project?location=EU"}


def test_nothing_set_is_the_local_stack() -> None:
    settings = parse_settings({"PATH": "/bin"})
    assert settings.home == Path(".kbq").absolute()
    assert settings.kafka.bootstrap_servers == "127.0.0.1:39092"
    assert settings.registry.url == "http://127.0.0.1:38081/apis/ccompat/v7"
    assert settings.warehouse_url == f"duckdb:{settings.home / 'warehouse.duckdb'}"
    assert settings.spark.master == "local[*]"


@pytest.mark.parametrize(
    ("variable", "value"), [("KBQ_RUN_RECORDS", "0"), ("KBQ_RUN_BYTES", "10485759"), ("KBQ_RUN_BYTES", "0")]
)
def test_a_limit_under_which_nothing_could_be_read_is_refused(variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{variable} is out of bounds"):
        parse_settings({variable: value})
    assert (parse_settings({}).run.run_records, parse_settings({}).run.run_bytes) == (0, 0)


def test_options_keep_their_own_names() -> None:
    settings = parse_settings(
        {
            "KBQ_KAFKA_SASL_MECHANISM": "PLAIN",
            "KBQ_SPARK_CONF_spark.executor.memory": "2g",
            "KBQ_LOCAL_KAFKA_PORT": "9",
        }
    )
    assert settings.kafka.options == {"sasl.mechanism": "PLAIN"}
    assert settings.spark.options == {"spark.executor.memory": "2g"}
    assert settings.kafka.bootstrap_servers == "127.0.0.1:9"


def test_a_typo_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match="did you mean KBQ_WAREHOUSE"):
        parse_settings({"KBQ_WAREHOSE": "secret-value"})


def test_a_malformed_number_is_refused_without_echoing_it() -> None:
    with pytest.raises(ConfigurationError, match="KBQ_RUN_SECONDS is not a whole number") as caught:
        parse_settings({"KBQ_RUN_SECONDS": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_secrets_are_not_in_the_representation() -> None:
    settings = parse_settings({"KBQ_REGISTRY_PASSWORD": "hunter2", "KBQ_REGISTRY_TOKEN": "hunter3"})
    assert "hunter" not in repr(settings.registry)


def test_two_variables_switch_to_google_cloud() -> None:
    settings = parse_settings(GOOGLE)
    assert settings.staging == Bucket("bucket", "staging")
    assert settings.warehouse == BigQueryProject("my-project", "EU")
    assert settings.google.extract_credentials == settings.google.load_credentials == ""


def test_bigquery_without_a_bucket_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="local folder"):
        parse_settings({"KBQ_WAREHOUSE": GOOGLE["KBQ_WAREHOUSE"]})


@pytest.mark.parametrize(
    ("environ", "poll", "load"),
    [
        ({}, 2.0, 120),
        (GOOGLE, 120.0, 900),
        ({**GOOGLE, "KBQ_POLL_SECONDS": "5", "KBQ_LOAD_SECONDS": "60"}, 5.0, 60),
    ],
)
def test_bigquery_has_its_own_cadence_until_it_is_given_one(
    environ: dict[str, str], poll: float, load: int
) -> None:
    run = parse_settings(environ).run
    assert (run.poll_seconds, run.load_seconds, run.clean_minutes) == (poll, load, 9)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("KBQ_CLEAN_MINUTES", "0"), ("KBQ_CLEAN_MINUTES", "60"), ("KBQ_POLL_SECONDS", "0")],
)
def test_a_number_out_of_bounds_is_refused(variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{variable} is out of bounds"):
        parse_settings({variable: value})


@pytest.mark.parametrize(
    "value", ["", "anonymous", "file:/keys/a.json", "impersonate:a@b.iam.gserviceaccount.com"]
)
def test_google_credentials_are_references(value: str) -> None:
    settings = parse_settings({"KBQ_EXTRACT_CREDENTIALS": value})
    assert settings.google.extract_credentials == value


@pytest.mark.parametrize(
    "value", ['{"private_key": "hunter2"}', "hunter2", "env:hunter2", "file:", "anonymous:hunter2"]
)
def test_google_credentials_themselves_are_refused_without_echoing_them(value: str) -> None:
    with pytest.raises(ConfigurationError, match="KBQ_LOAD_CREDENTIALS is not a reference") as caught:
        parse_settings({"KBQ_LOAD_CREDENTIALS": value})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", ["localhost:4443", "ftp://host", "https://user:hunter2@host", "http://a b"])
def test_an_endpoint_is_a_plain_url(value: str) -> None:
    with pytest.raises(ConfigurationError, match="KBQ_GCS_ENDPOINT is not an http or https URL") as caught:
        parse_settings({"KBQ_GCS_ENDPOINT": value})
    assert "hunter2" not in str(caught.value)


def test_the_environment_wins_over_the_file_and_the_file_over_remembered_ports(
    current_folder: Path,
) -> None:
    remember_ports(current_folder / ".kbq", {"kafka_port": 1111, "registry_port": 2222})
    assert parts({}).deployment.settings.kafka.bootstrap_servers == "127.0.0.1:1111"
    Path("kbq.toml").write_text('KBQ_LOCAL_KAFKA_PORT = 3333\nKBQ_DATASET = "filed"\nKBQ_ENV = "filed"\n')
    found = parts({"KBQ_ENV": "set"}).deployment.settings
    assert (found.kafka.bootstrap_servers, found.local.registry_port) == ("127.0.0.1:3333", 2222)
    assert (found.catalog.dataset, found.catalog.env) == ("filed", "set")
    assert found.local.fixed == {"kafka_port"}
    Path("kbq.toml").rename("other.toml")
    other = parts({"KBQ_SETTINGS": "other.toml"}).deployment.settings
    assert (other.catalog.dataset, other.local.file) == ("filed", str(Path("other.toml").absolute()))


@pytest.mark.parametrize(
    "text", ["KBQ_ENV", "PATH = 'x'", "KBQ_SETTINGS = 'x'", "KBQ_ENV = [1]", "[KBQ_ENV]", None]
)
def test_a_settings_file_that_is_not_one_is_refused_by_name(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "kbq.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"kbq\.toml"):
        parts({"KBQ_SETTINGS": str(file)})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 0),
        ({"KBQ_STAGING": "gs://bucket/kbq"}, 600),
        ({"KBQ_STAGING": "gs://bucket/kbq", "KBQ_QUIET_SECONDS": "0"}, 0),
        ({"KBQ_QUIET_SECONDS": "60"}, 60),
    ],
)
def test_quiet_partitions_wait_where_files_cost_money(environ: dict[str, str], expected: int) -> None:
    assert parse_settings(environ).catalog.quiet_seconds == expected
