"""What Spark ships to workers."""

from __future__ import annotations

import pickle

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.settings import Settings, parse_settings
from kbq_assets.worker.task import UnitTask

CANARY = "canary-5f0c"
CLUSTER = {"KBQ_SPARK_MASTER": "spark://127.0.0.1:7077"}
SECRETS = [
    "KBQ_REGISTRY_PASSWORD",
    "KBQ_REGISTRY_TOKEN",
    "KBQ_REGISTRY_KEY_PASSWORD",
    "KBQ_KAFKA_SASL_PASSWORD",
    "KBQ_KAFKA_SSL_KEY_PEM",
]


def settings(**environ: str) -> Settings:
    return parse_settings(environ)


@pytest.mark.parametrize("name", SECRETS)
def test_a_plain_secret_does_not_leave_for_a_cluster(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        UnitTask(settings(**CLUSTER, **{name: CANARY}))
    assert "secret itself would be sent" in str(refused.value)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("reference", ["env:KBQ_TEST_CANARY", "file:{}"])
def test_references_travel_and_what_they_refer_to_does_not(
    name: str, reference: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBQ_TEST_CANARY", CANARY)
    path = tmp_path_factory.mktemp("secrets") / "secret"
    path.write_text(CANARY)
    reference = reference.format(path)
    shipped = pickle.dumps(UnitTask(settings(**CLUSTER, **{name: reference})))
    assert reference.encode() in shipped
    assert CANARY.encode() not in shipped


@pytest.mark.parametrize("name", SECRETS)
def test_on_one_machine_plain_secrets_are_the_users_choice(name: str) -> None:
    UnitTask(settings(KBQ_SPARK_MASTER="local[2]", **{name: CANARY}))
