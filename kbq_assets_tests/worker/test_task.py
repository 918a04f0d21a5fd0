"""What Spark ships to workers."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kbq_assets.core.config.settings import VARIABLES, Settings, parse_settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.worker.task import UnitTask, worker_ports
from kbq_assets_tests.fixtures.variables import Variables

CANARY = "canary-5f0c"
CLUSTER = {"KBQ_SPARK_MASTER": "spark://127.0.0.1:7077"}
SECRETS = [
    "KBQ_REGISTRY_PASSWORD",
    "KBQ_REGISTRY_TOKEN",
    "KBQ_REGISTRY_KEY_PASSWORD",
    "KBQ_KAFKA_SASL_PASSWORD",
    "KBQ_KAFKA_SSL_KEY_PEM",
    "KBQ_KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET",
]
#: User and password may be in an address.
ADDRESSES = {
    "KBQ_REGISTRY_URL": f"https://first,https://me:{CANARY}@registry",
    "KBQ_KAFKA_BOOTSTRAP_SERVERS": f"SASL_SSL://me:{CANARY}@broker:9092",
    "KBQ_KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": f"https://me:{CANARY}@idp/token",
}
#: Nobody keeps a secret in these: places, names, files.
OPEN = {
    "KBQ_HOME",
    "KBQ_BACKUP_LOCATION",
    "KBQ_BACKUP_PERSONAL_LOCATION",
    "KBQ_STAGING",
    "KBQ_SOURCE_TOPICS",
    "KBQ_ENV",
    "KBQ_DATASET",
    "KBQ_REGISTRY_USERNAME",
    "KBQ_REGISTRY_CA_FILE",
    "KBQ_REGISTRY_CERTIFICATE_FILE",
    "KBQ_REGISTRY_KEY_FILE",
}


def settings(**environ: str) -> Settings:
    return parse_settings(environ)


@pytest.mark.parametrize(("name", "value"), [*((name, CANARY) for name in SECRETS), *ADDRESSES.items()])
def test_a_plain_secret_does_not_leave_for_a_cluster(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        UnitTask(settings(**CLUSTER, **{name: value}))
    assert "secret itself would go to Spark's workers" in str(refused.value)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("reference", ["env:KBQ_TEST_CANARY", "file:{}"])
def test_references_travel_and_what_they_refer_to_does_not(
    name: str, reference: str, tmp_path_factory: pytest.TempPathFactory, variables: Variables
) -> None:
    variables["KBQ_TEST_CANARY"] = CANARY
    path = tmp_path_factory.mktemp("secrets") / "secret"
    path.write_text(CANARY)
    reference = reference.format(path)
    shipped = pickle.dumps(UnitTask(settings(**CLUSTER, **{name: reference})))
    assert reference.encode() in shipped
    assert CANARY.encode() not in shipped


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KBQ_DAGSTER_POSTGRES_URL", f"postgresql://me:{CANARY}@host/dagster"),
        ("KBQ_SPARK_CONF_spark.authenticate.secret", CANARY),
        ("KBQ_WEBHOOK_SECRET", CANARY),
        ("KBQ_NOTIFY", f"webhook:https://host/{CANARY}"),
    ],
)
def test_what_tasks_have_no_use_for_stays_here(name: str, value: str) -> None:
    found = settings(**CLUSTER, **{name: value})
    assert CANARY.encode() in pickle.dumps(found)
    assert CANARY.encode() not in pickle.dumps(UnitTask(found))


@pytest.mark.parametrize("name", sorted(VARIABLES.keys() - OPEN - CLUSTER.keys() - ADDRESSES.keys()))
@pytest.mark.parametrize("value", [CANARY, f"https://me:{CANARY}@host/path"])
def test_no_other_variable_can_carry_a_secret_to_a_cluster(name: str, value: str) -> None:
    try:
        shipped = pickle.dumps(UnitTask(settings(**CLUSTER, **{name: value})))
    except ConfigurationError:
        return  # refused
    assert CANARY.encode() not in shipped


@pytest.mark.parametrize("name", SECRETS)
def test_on_one_machine_plain_secrets_are_the_users_choice(name: str) -> None:
    UnitTask(settings(KBQ_SPARK_MASTER="local[2]", **{name: CANARY}))


def test_each_cycle_of_a_resident_application_asks_the_registry_anew_and_keeps_connections(
    tmp_path: Path,
) -> None:
    here = settings(KBQ_HOME=str(tmp_path))
    first, again, later = (worker_ports(here, cycle) for cycle in (1, 1, 2))
    assert first is again
    assert later.registry is not first.registry
    assert (later.source, later.store) == (first.source, first.store)


@pytest.mark.thorough
def test_settings_that_change_for_ever_leave_a_bounded_number_of_open_ports(tmp_path: Path) -> None:
    opened = [worker_ports(settings(KBQ_HOME=str(tmp_path / str(number)))) for number in range(9)]
    again = [worker_ports(settings(KBQ_HOME=str(tmp_path / str(number)))) for number in (8, 7, 6, 5)]
    assert again == opened[:4:-1], "the latest stay"
    assert worker_ports(settings(KBQ_HOME=str(tmp_path / "0"))) is not opened[0]
