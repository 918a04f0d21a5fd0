"""The Terraform module grants exactly the permissions in KBQ's own list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbq_assets.core.config.google_permissions import (
    BUCKET_PERMISSIONS,
    CREATE_OBJECTS,
    CREATES_IN,
    DATASET_ROLE,
    DELETE_OBJECTS,
    DELETES_IN,
    GET_BUCKET,
    JOB_ROLE,
)
from kbq_assets.core.config.roles import Role

MODULE = Path(__file__).parents[3] / "deploy" / "terraform"
MAIN = (MODULE / "main.tf").read_text(encoding="utf-8")
ALL = "\n".join(path.read_text(encoding="utf-8") for path in sorted(MODULE.glob("*.tf")))


def _list(name: str) -> list[str]:
    found = re.search(rf"^\s*{name}\s*=\s*\[(.*?)\]", MAIN, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return re.findall(r'"([^"]+)"', found[1])


@pytest.mark.parametrize("role", Role)
def test_a_role_writes_in_its_own_folders_alone(role: Role) -> None:
    """Its one role for writing carries creation and deletion, as the guide's does."""
    wanted = {folder.rstrip("/").split("/")[0] for folder in (*CREATES_IN[role], *DELETES_IN[role])}
    assert _list(role.value) == sorted(wanted)


def test_the_custom_roles_have_the_permissions_that_no_role_of_google_s_has_alone() -> None:
    assert _list("look_permissions") == [GET_BUCKET, "storage.buckets.getIamPolicy"]
    assert _list("write_permissions") == [CREATE_OBJECTS, DELETE_OBJECTS]


def test_no_other_role_is_granted() -> None:
    roles = set(re.findall(r'\brole\s*=\s*"(roles/[^"]+)"', ALL))
    reads = {BUCKET_PERMISSIONS["storage.objects.get"], BUCKET_PERMISSIONS["storage.objects.list"]}
    assert roles == {*reads, JOB_ROLE, DATASET_ROLE, "roles/iam.workloadIdentityUser"}


def test_only_the_loader_gets_roles_of_bigquery() -> None:
    for role in (JOB_ROLE, DATASET_ROLE):
        resource = next(block for block in MAIN.split("\nresource ") if f'"{role}"' in block)
        assert 'google_service_account.role["load"].member' in resource


def test_the_bucket_keeps_nothing_deleted_and_datasets_expire_nothing() -> None:
    assert "retention_duration_seconds = 0" in MAIN
    assert re.search(r"location\s*=\s*var\.region", MAIN)
    assert "default_partition_expiration_ms" not in ALL and "default_table_expiration_ms" not in ALL


def test_every_variable_is_declared_and_used() -> None:
    declared = set(re.findall(r'^variable "(\w+)"', ALL, re.MULTILINE))
    assert declared == set(re.findall(r"\bvar\.(\w+)", ALL))


def test_alerts_ask_for_metrics_that_exist() -> None:
    """Those of the alerts for Prometheus, which promtool and their own tests check."""
    known = (MODULE.parent / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    asked = set(re.findall(r"\bkbq_\w+", (MODULE / "monitoring.tf").read_text(encoding="utf-8")))
    assert asked and {name for name in asked if name not in known} == set()


def test_a_missing_service_is_noticed_and_alerts_do_not_wait_for_the_first_numbers() -> None:
    """Without numbers, no other alert can fire. Google refuses an alert on a metric that does not exist yet."""
    monitoring = (MODULE / "monitoring.tf").read_text(encoding="utf-8")
    assert '"absent(kbq_up)"' in monitoring
    assert re.search(r"disable_metric_validation\s*= true", monitoring)


def test_a_new_project_gets_its_apis_before_the_resources_that_need_them() -> None:
    services = MAIN[MAIN.index("google_project_service") :].split("\n}")[0]
    for each in ("cloudresourcemanager", "iam", "monitoring", "billingbudgets"):
        assert f'"{each}.googleapis.com"' in services
    first = (
        *("google_storage_bucket", "google_bigquery_dataset", "google_service_account"),
        *("google_project_iam_custom_role", "google_monitoring_alert_policy", "google_billing_budget"),
    )
    blocks = re.findall(r'^(?:resource|data) "(\w+)" "\w+" {\n(.*?)^}', ALL, re.MULTILINE | re.DOTALL)
    waiting = {kind for kind, body in blocks if "depends_on" in body}
    assert {*first, "google_project"} == waiting
    assert all("[google_project_service.apis]" in body for kind, body in blocks if kind in waiting)
