"""The page on Google Cloud grants exactly the permissions that each side needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kbq_assets.core.config.google_permissions import (
    BUCKET_PERMISSIONS,
    CREATE_TABLES,
    CREATES_IN,
    DATASET_ROLE,
    DELETES_IN,
    GET_DATASET,
    JOB_ROLE,
    LIST_TABLES,
    READER_PERMISSIONS,
    RUN_JOBS,
    TABLE_PERMISSIONS,
)
from kbq_assets.core.config.roles import Role

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "google-cloud.md").read_text(encoding="utf-8")
PERMISSIONS = [*BUCKET_PERMISSIONS, RUN_JOBS, GET_DATASET, CREATE_TABLES, LIST_TABLES, *TABLE_PERMISSIONS]


def test_images_have_the_projects_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.findall(r"/kbq/kbq:(\S+)", PAGE) == [version]
    assert f"tag: {version}\n" in (ROOT / "deploy" / "helm" / "example-values.yaml").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "deploy" / "helm" / "Chart.yaml").read_text()


@pytest.mark.parametrize("permission", PERMISSIONS)
def test_every_permission_is_in_the_table(permission: str) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| ") and f"`{permission}`" in line]
    assert row.count("|") == 6


def test_the_roles_are_the_doctors() -> None:
    assert {f"`{role}`" for role in (*BUCKET_PERMISSIONS.values(), JOB_ROLE, DATASET_ROLE)} <= set(
        re.findall(r"`[^`\n]+`", PAGE)
    ) | {"`roles/storage.legacyBucketReader`"}


def test_the_role_of_who_grants_reading_has_what_the_grants_need() -> None:
    (granted,) = re.findall(r"create kbqReaders .* --permissions=(\S+)", PAGE)
    assert granted.split(",") == [*READER_PERMISSIONS]


@pytest.mark.parametrize("side", Role)
def test_each_sides_folders_are_in_its_row_and_its_condition(side: Role) -> None:
    (row,) = re.findall(rf"^\| {side} \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert [tuple(re.findall(r"`([a-z]+/)`", cell)) for cell in row] == [CREATES_IN[side], DELETES_IN[side]]
    (condition,) = re.findall(rf"^title: kbq-{side}\n(.*?)^END$", PAGE, re.MULTILINE | re.DOTALL)
    allowed = set(re.findall(r'startsWith\("projects/_/buckets/\$BUCKET/objects/kbq/([a-z]+/)"\)', condition))
    assert allowed == {*CREATES_IN[side], *DELETES_IN[side]}
