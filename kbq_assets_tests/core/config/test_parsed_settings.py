"""Parsed settings: chosen warehouses, areas of the staging area, settings for tasks, and similar names."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.config.locations import BigQueryProject, DuckDbFile, Folder
from kbq_assets.core.config.parts import ENVIRONMENT, LOCAL_STACK
from kbq_assets.core.config.settings import (
    VARIABLES,
    Settings,
    UnknownVariables,
    nearest_variable,
    parse_settings,
    values_of,
)
from kbq_assets.core.errors import ConfigurationError

SEVERAL = {"KBQ_WAREHOUSE": "bq=duckdb:a,lake=iceberg:./lake,copy=duckdb:b", "KBQ_STAGING": "/staging"}
ONE = {"KBQ_WAREHOUSE": "duckdb:a"}


def settings_of(**environ: str) -> Settings:
    return parse_settings(environ)


@pytest.mark.parametrize(
    ("environ", "chosen", "url", "area", "others"),
    [
        (ONE, "", "duckdb:a", "", ()),
        ({"KBQ_WAREHOUSE": "bq=duckdb:a"}, "bq", "duckdb:a", "", ()),
        (SEVERAL, "bq", "duckdb:a", "", ("lake", "copy")),
        (SEVERAL, "lake", "iceberg:./lake", "lake", ("lake", "copy")),
        (SEVERAL, "copy", "duckdb:b", "copy", ("lake", "copy")),
    ],
)
def test_the_first_warehouse_has_no_area_of_its_own(
    environ: dict[str, str], chosen: str, url: str, area: str, others: tuple[str, ...]
) -> None:
    found = parse_settings(environ).for_warehouse(chosen)
    assert (found.warehouse_url, found.warehouse_area, found.other_warehouses) == (url, area, others)


@pytest.mark.parametrize(
    ("environ", "name", "next_step"),
    [
        (SEVERAL, "other", "name one of bq, lake, copy"),
        (SEVERAL, "", "name one of bq, lake, copy"),
        (ONE, "bq", "leave the name out: the only warehouse has none"),
    ],
)
def test_an_unknown_warehouse_is_refused_with_those_that_exist(
    environ: dict[str, str], name: str, next_step: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"KBQ_WAREHOUSE has no warehouse {name}") as caught:
        parse_settings(environ).for_warehouse(name)
    assert caught.value.next_step == next_step


@pytest.mark.parametrize(
    ("names", "stored"),
    [
        ((), ()),
        (("bq",), ()),
        (("lake",), ("lake",)),
        (("copy", "bq", "lake"), ("", "lake", "copy")),
        (("copy", "bq"), ("", "copy")),
    ],
)
def test_stored_names_are_in_the_order_of_the_warehouses(
    names: tuple[str, ...], stored: tuple[str, ...]
) -> None:
    found = parse_settings(SEVERAL)
    assert found.stored_warehouses(names) == stored
    assert {found.warehouse_named(each) for each in stored} == ({*names} if stored else set())


def test_a_stored_name_is_shown_as_the_variable_has_it() -> None:
    assert parse_settings(SEVERAL).warehouse_named("") == "bq"
    assert parse_settings(ONE).warehouse_named("") == ""


@pytest.mark.parametrize("staging", ["/staging", "/staging/", "file:///staging"])
def test_an_area_below_has_the_chosen_warehouse_alone_and_the_same_backups(staging: str) -> None:
    below = parse_settings({**SEVERAL, "KBQ_STAGING": staging}).for_warehouse("lake").below("replayed/7")
    assert below.staging == Folder(Path("/staging/replayed/7"))
    assert (below.warehouse_area, below.other_warehouses) == ("", ())
    assert below.warehouse_url == "iceberg:./lake"
    assert below.backup.location == staging


def test_an_area_below_keeps_a_place_of_backups() -> None:
    below = parse_settings({**SEVERAL, "KBQ_BACKUP_LOCATION": "/backups"}).below("replayed/7")
    assert below.backup.location == "/backups"


def test_tasks_get_no_secret_that_they_do_not_need() -> None:
    environ = {
        "KBQ_NOTIFY": "webhook:https://host/hunter2",
        "KBQ_DAGSTER_POSTGRES_URL": "postgres://me:hunter2@host/db",
        "KBQ_ADVISORY_GROUP": "hunter2",
        "KBQ_SPARK_CONF_spark.authenticate.secret": "hunter2",
        "KBQ_SETTINGS": "hunter2",
        "KBQ_REGISTRY_PASSWORD": "needed",
        "KBQ_KAFKA_SASL_PASSWORD": "needed",
        "KBQ_PII_KEYS": "env:NEEDED",
        "KBQ_SPARK_MASTER": "yarn",
    }
    tasks = parse_settings(environ, origins={"KBQ_DATASET": "hunter2"}).for_tasks
    everything = " ".join(values_of(tasks).values()) + str(tasks.local.origins) + str(tasks.spark.options)
    assert "hunter2" not in everything
    assert (tasks.registry.password, tasks.kafka.options) == ("needed", {"sasl.password": "needed"})
    assert (tasks.pii.keys, tasks.spark.master) == ("env:NEEDED", "yarn")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("KBQ_STAGNG", "KBQ_STAGING"),
        ("kbq_staging", "KBQ_STAGING"),
        ("staging", "KBQ_STAGING"),
        ("warehous", "KBQ_WAREHOUSE"),
        ("KBQ_COMPLETELY_DIFFERENT_THING", ""),
    ],
)
def test_the_nearest_variable_is_found_whatever_its_case(written: str, meant: str) -> None:
    assert nearest_variable(written) == meant


@pytest.mark.parametrize(
    ("environ", "origins", "message", "next_step"),
    [
        ({"KBQ_STAGNG": "x"}, None, "unknown variable KBQ_STAGNG", "did you mean KBQ_STAGING?"),
        (
            {"KBQ_STAGNG": "x", "KBQ_WAREHOSE": "y"},
            {"KBQ_WAREHOSE": "kbq.toml"},
            "unknown variables KBQ_STAGNG, KBQ_WAREHOSE in kbq.toml",
            "did you mean KBQ_STAGING, KBQ_WAREHOUSE?",
        ),
        ({"KBQ_ZZZZZZZZZZZZ": "x"}, None, "unknown variable KBQ_ZZZZZZZZZZZZ", "`kbq settings` lists the variables"),
    ],
)  # fmt: skip
def test_unknown_variables_are_named_with_their_places(
    environ: dict[str, str], origins: dict[str, str] | None, message: str, next_step: str
) -> None:
    with pytest.raises(UnknownVariables) as caught:
        parse_settings(environ, origins=origins)
    assert (caught.value.message, caught.value.next_step) == (message, next_step)


def test_the_settings_without_unknown_variables_are_those_of_the_others() -> None:
    with pytest.raises(UnknownVariables) as caught:
        settings_of(KBQ_STAGNG="x", KBQ_DATASET="d")
    assert caught.value.others == settings_of(KBQ_DATASET="d")
    with pytest.raises(UnknownVariables) as caught:
        settings_of(KBQ_STAGNG="x", KBQ_RUN_SECONDS="y")
    assert caught.value.others is None


@pytest.mark.parametrize(
    "name", ["KBQ_TEST_X", "KBQ_CI", "KBQ_NO_SKIP", "KBQ_FUZZ", "KBQX", "OTHER", "kbq_staging"]
)
def test_variables_of_others_are_none_of_kbq_s(name: str) -> None:
    assert parse_settings({name: "x"}) == parse_settings({})


def test_ports_are_remembered_unless_a_variable_sets_them() -> None:
    found = parse_settings({"KBQ_LOCAL_KAFKA_PORT": "1"}, {"kafka_port": 2, "registry_port": 3, "other": 4})
    assert (found.local.kafka_port, found.local.registry_port) == (1, 3)
    assert (found.local.fixed, found.registry.url) == (
        frozenset({"kafka_port"}),
        "http://127.0.0.1:3/apis/ccompat/v7",
    )
    assert found.local.origins == {
        "KBQ_LOCAL_KAFKA_PORT": ENVIRONMENT,
        "KBQ_LOCAL_REGISTRY_PORT": LOCAL_STACK,
    }


def test_each_variable_has_a_value_as_text() -> None:
    found = values_of(settings_of(KBQ_RUN_RECORDS="5", KBQ_NOTIFY="webhook:https://host/hunter2"))
    assert found.keys() == VARIABLES.keys()
    assert (found["KBQ_RUN_RECORDS"], found["KBQ_RUN_BYTES"]) == ("5", "")
    assert found["KBQ_NOTIFY"] == "webhook:https://host/***"


@pytest.mark.parametrize(
    ("value", "expected"),
    [("true", True), ("YES", True), ("1", True), ("on", True), ("false", False), ("N", False), ("0", False)],
)
def test_flags_of_file_batches_are_written_as_google_s_tool_takes_them(value: str, expected: bool) -> None:
    assert settings_of(KBQ_FILES_VIEWS=value).extras.files.views is expected


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("KBQ_FILES_VIEWS", "maybe", "KBQ_FILES_VIEWS: unknown value 'maybe'"),
        ("KBQ_FILES_VIEWS", "", "KBQ_FILES_VIEWS: unknown value ''"),
        ("KBQ_FILES_SUCCESS_FILENAME", "a/_SUCCESS", "KBQ_FILES_SUCCESS_FILENAME is the name of an object, not a path"),
        ("KBQ_FILES_DESTINATION_REGEX", "(", "KBQ_FILES_DESTINATION_REGEX"),
        ("KBQ_FILES_ON_LATE", "refuse", "KBQ_FILES_ON_LATE: unknown value 'refuse'"),
        ("KBQ_SERVE_SECONDS", "4", "KBQ_SERVE_SECONDS is out of bounds: expected 5 or more"),
        ("KBQ_LAG_LABEL", "group", "KBQ_LAG_LABEL: unknown value 'group'"),
        ("KBQ_BACKUP", "only", "KBQ_BACKUP: unknown value 'only'"),
        ("KBQ_BACKUP_LEVEL", "20", "KBQ_BACKUP_LEVEL is out of bounds: expected -7 to 19"),
        ("KBQ_BACKUP_LOCATION", "s3://b", "KBQ_BACKUP_LOCATION: staging at s3:// is not supported"),
        ("KBQ_BACKUP_CREDENTIALS", "hunter2", "KBQ_BACKUP_CREDENTIALS is not a reference to credentials"),
        ("KBQ_PII_KEYS", "hunter2", "KBQ_PII_KEYS is not a reference"),
    ],
)  # fmt: skip
def test_a_wrong_value_of_an_extra_names_its_variable(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_settings({variable: value})
    assert caught.value.message.startswith(message)
    assert caught.value.next_step


@pytest.mark.parametrize("value", ["on", "true", "off", "false"])
def test_a_switch_takes_what_yaml_makes_of_it(value: str) -> None:
    """Helm makes `false` of `off`, and Dagster's components make `off` of `false`."""
    is_on = value in ("on", "true")
    assert parse_settings({"KBQ_DONE_FILES": value}).run.done_files == ("on" if is_on else "off")
    assert parse_settings({"KBQ_BACKUP": value}).backup.topics == ("true" if is_on else "false")


def test_every_warehouse_must_read_the_staging_area() -> None:
    several = {"KBQ_WAREHOUSE": "copy=duckdb:a,bq=bigquery://my-project"}
    with pytest.raises(ConfigurationError, match="BigQuery cannot load files of a local folder"):
        parse_settings(several)
    found = parse_settings({**several, "KBQ_STAGING": "gs://bucket/a"})
    assert [type(each.place) for each in found.warehouses] == [DuckDbFile, BigQueryProject]
    assert found.run.poll_seconds == 120


def test_a_master_of_this_machine_is_local() -> None:
    masters = {"local": True, "local[2]": True, "yarn": False, "spark://host:7077": False}
    assert {name: settings_of(KBQ_SPARK_MASTER=name).spark.is_local for name in masters} == masters
