"""The Helm chart runs KBQ's own commands with KBQ's own settings, and contains no secret."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from kbq_assets.commands import command_line
from kbq_assets.core.config.settings import VARIABLES, parse_settings
from kbq_assets.extras.metrics.service import server
from kbq_assets_tests.google import helm, kubernetes
from kbq_assets_tests.google.install import built_by_go

OBJECTS: dict[tuple[str, str], dict[str, Any]] = {
    (each["kind"], each["metadata"]["name"]): each
    for each in yaml.safe_load_all(helm.RENDERED.read_text(encoding="utf-8"))
    if each
}
PODS = {
    name: each["spec"]["template"]["spec"]
    for (kind, name), each in OBJECTS.items()
    if kind in ("StatefulSet", "Deployment")
}


def _environment(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in pod["containers"][0]["env"]}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    else:
        yield str(value)


def test_what_is_tested_here_was_rendered_from_the_chart_as_it_is() -> None:
    assert helm.RENDERED.read_text(encoding="utf-8").startswith(helm.digest()), (
        "after a change of deploy/helm: python -m kbq_assets_tests.google.helm HELM"
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Helm, whose build takes minutes."""
    folder = tmp_path_factory.mktemp("helm")
    return shutil.which("helm") or str(built_by_go(folder, "helm.sh/helm/v3/cmd/helm", "v3.16.4"))


@pytest.mark.slow
def test_helm_accepts_the_chart_and_renders_what_is_tested_here(program: str) -> None:
    assert helm.rendered(program) == helm.RENDERED.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_number_of_the_environment_arrives_as_it_is_stated(program: str, tmp_path: Path) -> None:
    """Without 0, runs are deleted that an operator wants to keep."""
    stated = {
        "KBQ_DAGSTER_RUN_DAYS": 0,
        "KBQ_RUN_RECORDS": 20_000_000,
        "KBQ_DONE_FILES": False,  # how YAML reads `off`
        "KBQ_STAGING": "",
        "KBQ_WAREHOUSE": None,
    }
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"environment": stated}), encoding="utf-8")
    made = yaml.safe_load_all(helm.rendered(program, "-f", str(values)))
    [pod] = [each["spec"]["template"]["spec"] for each in made if each and each["kind"] == "StatefulSet"]
    found = {name: entry["value"] for name, entry in _environment(pod).items() if name in stated}
    assert found == {"KBQ_DAGSTER_RUN_DAYS": "0", "KBQ_RUN_RECORDS": "20000000", "KBQ_DONE_FILES": "false"}
    assert parse_settings(found).run.done_files == "off"


@pytest.mark.slow
@pytest.mark.parametrize(
    "stated", [{"enviroment": {}}, {"home": {"storageclass": "fast"}}, {"image": {"tag": 1.1}}]
)
def test_a_value_that_the_chart_would_ignore_or_change_is_refused(
    program: str, tmp_path: Path, stated: dict[str, Any]
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(stated), encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        helm.rendered(program, "-f", str(values))
    assert b"don't meet the specifications of the schema" in str(refused.value.stderr).encode()


@pytest.mark.slow
def test_certificates_can_be_mounted_and_spark_may_start_executors(program: str, tmp_path: Path) -> None:
    volume = {"name": "ca", "secret": {"secretName": "kafka-ca"}}
    mount = {"name": "ca", "mountPath": "/etc/kbq/ca", "readOnly": True}
    stated = {"volumes": [volume], "volumeMounts": [mount], "sparkOnKubernetes": True}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(stated), encoding="utf-8")
    made = [each for each in yaml.safe_load_all(helm.rendered(program, "-f", str(values))) if each]
    pods = [
        each["spec"]["template"]["spec"] for each in made if each["kind"] in ("StatefulSet", "Deployment")
    ]
    assert all(volume in pod["volumes"] and mount in pod["containers"][0]["volumeMounts"] for pod in pods)
    assert sorted(pod["automountServiceAccountToken"] for pod in pods) == [False, True]
    [role] = [each for each in made if each["kind"] == "Role"]
    [binding] = [each for each in made if each["kind"] == "RoleBinding"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "kbq", "namespace": "kbq"}]
    assert {"pods", "configmaps"} <= set(role["rules"][0]["resources"])


@pytest.mark.parametrize("kind, name", sorted(OBJECTS))
def test_the_api_of_kubernetes_accepts_each_object(kind: str, name: str) -> None:
    assert kubernetes.mistakes(OBJECTS[kind, name]) == []


@pytest.mark.parametrize(
    "path, wrong",
    [
        (("spec", "template", "spec", "containers", 0), {"imagePullpolicy": "Always"}),
        (("spec", "template", "spec", "containers", 0, "env", 0), {"value": 1}),
        (("spec", "template", "spec"), {"containers": None}),
        (("spec", "volumeClaimTemplates", 0, "spec"), {"resources": {"request": {}}}),
        ((), {"apiVersion": "apps/v1beta1"}),
    ],
)
def test_a_misspelled_field_a_wrong_type_and_an_old_version_are_noticed(
    path: tuple[str | int, ...], wrong: dict[str, Any]
) -> None:
    changed: Any = copy.deepcopy(OBJECTS["StatefulSet", "kbq-ui"])
    place = changed
    for each in path:
        place = place[each]
    place.update(wrong)
    assert len(kubernetes.mistakes(changed)) == 1


@pytest.mark.parametrize("name", sorted(PODS))
def test_every_setting_is_one_of_kbq_s_and_they_fit_together(name: str) -> None:
    found = _environment(PODS[name])
    ours = {key: each.get("value", "") for key, each in found.items() if key.startswith("KBQ_")}
    assert [key for key in ours if key not in VARIABLES and not key.startswith("KBQ_KAFKA_")] == []
    assert parse_settings(ours).dagster.postgres_url == "env:DAGSTER_POSTGRES_URL"


@pytest.mark.parametrize("name", sorted(PODS))
def test_secrets_come_by_reference_alone(name: str) -> None:
    found = _environment(PODS[name])
    for key in ("DAGSTER_POSTGRES_URL", "KAFKA_PASSWORD"):
        assert set(found[key]["valueFrom"]["secretKeyRef"]) == {"name", "key"}
    assert found["KBQ_KAFKA_SASL_PASSWORD"]["value"] == "env:KAFKA_PASSWORD"
    assert "Secret" not in {kind for kind, _ in OBJECTS}


@pytest.mark.parametrize("name", sorted(PODS))
def test_a_container_runs_a_command_that_there_is(name: str) -> None:
    [container] = PODS[name]["containers"]
    command, *options = container["args"]
    shown = CliRunner().invoke(command_line(), [command, "--help"]).output
    assert all(option in shown for option in options if option.startswith("--"))
    assert all(isinstance(each, str) for each in container["args"])


def test_probes_ask_what_answers_without_a_dependency() -> None:
    [metrics] = PODS["kbq-metrics"]["containers"]
    for probe in ("readinessProbe", "livenessProbe"):
        path = metrics[probe]["httpGet"]["path"]
        assert f'"{path}"' in Path(server.__file__).read_text(encoding="utf-8")
    [ui] = PODS["kbq-ui"]["containers"]
    for probe in ("startupProbe", "readinessProbe"):
        assert "http://127.0.0.1:3000/server_info" in ui[probe]["exec"]["command"][-1]


@pytest.mark.parametrize("name", sorted(PODS))
def test_a_pod_has_what_it_names_and_is_not_root(name: str) -> None:
    pod, [container] = PODS[name], PODS[name]["containers"]
    claims = OBJECTS.get(("StatefulSet", name), {"spec": {}})["spec"].get("volumeClaimTemplates", [])
    volumes = {each["name"] for each in pod["volumes"]} | {each["metadata"]["name"] for each in claims}
    assert {each["name"] for each in container["volumeMounts"]} <= volumes
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    account = OBJECTS["ServiceAccount", pod["serviceAccountName"]]
    assert "iam.gke.io/gcp-service-account" in account["metadata"]["annotations"]


def test_tasks_fit_into_the_memory_of_their_pod() -> None:
    """Without a limit of cores, a pod sees those of its node: with a task on each, it would be killed."""
    [ui] = PODS["kbq-ui"]["containers"]
    [tasks] = re.findall(r"\[(\d+)\]", _environment(PODS["kbq-ui"])["KBQ_SPARK_MASTER"]["value"])
    assert ui["resources"]["requests"]["memory"] == "3Gi"
    assert 900 + 700 + int(tasks) * 400 <= 3 * 1024  # UI and load, Spark's driver, workers


def test_services_select_their_pods_and_one_daemon_runs() -> None:
    for (kind, name), each in OBJECTS.items():
        if kind == "Service":
            labels = next(
                other["spec"]["template"]["metadata"]["labels"]
                for (kind_, name_), other in OBJECTS.items()
                if name_ == name and kind_ != "Service"
            )
            assert each["spec"]["selector"].items() <= labels.items()
    assert OBJECTS["StatefulSet", "kbq-ui"]["spec"]["replicas"] == 1
    assert all("{{" not in text for text in _texts(list(OBJECTS.values())))
