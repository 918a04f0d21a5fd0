"""Where tasks write backups, by the settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from kbq_assets.adapters import gcs
from kbq_assets.core.backup.areas import PERSONAL, REGULAR
from kbq_assets.core.config.roles import Role
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.worker.adapters import backup_places, open_backup_store


def test_backups_lie_in_the_staging_area_unless_they_have_a_place(tmp_path: Path) -> None:
    places = {"KBQ_HOME": str(tmp_path / "home")}
    assert open_backup_store(parse_settings(places), REGULAR).uri("a") == f"file://{tmp_path}/home/staging/a"
    places |= {
        "KBQ_BACKUP_LOCATION": str(tmp_path / "far"),
        "KBQ_BACKUP_PERSONAL_LOCATION": str(tmp_path / "own"),
    }
    found = parse_settings(places)
    assert open_backup_store(found, REGULAR).uri("a") == f"file://{tmp_path}/far/a"
    assert open_backup_store(found, PERSONAL).uri("a") == f"file://{tmp_path}/own/a"


def test_personal_data_goes_to_its_own_place(tmp_path: Path) -> None:
    settings = parse_settings(
        {
            "KBQ_HOME": str(tmp_path),
            "KBQ_BACKUP_PERSONAL_LOCATION": str(tmp_path / "own"),
            "KBQ_BACKUP_CODEC": "snappy",
        }
    )
    place = backup_places(settings)
    plain, personal = TopicSettings.of(backup="true"), TopicSettings.of(backup="true", pii="x:drop")
    assert place(personal).store.uri("a") == f"file://{tmp_path}/own/a"
    assert place(plain).store.uri("a") != place(personal).store.uri("a")
    assert place(plain) is place(plain), "a store opens once"
    assert place(plain).codec == "snappy"


def test_a_storage_class_of_a_folder_is_refused_not_ignored(tmp_path: Path) -> None:
    settings = parse_settings({"KBQ_HOME": str(tmp_path), "KBQ_BACKUP_STORAGE_CLASS": "NEARLINE"})
    with pytest.raises(ConfigurationError, match="KBQ_BACKUP_STORAGE_CLASS"):
        open_backup_store(settings, REGULAR)


@pytest.mark.parametrize("role", Role)
def test_a_bucket_of_backups_has_credentials_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    """Also where Dagster brings a client for the staging area."""
    opened: list[tuple[str, str, object]] = []
    monkeypatch.setattr(
        gcs, "open_gcs_store", lambda *args: opened.append((args[0], args[1].credentials, args[2]))
    )
    of_staging = Client(project="p", credentials=AnonymousCredentials())
    places = {
        "KBQ_HOME": str(tmp_path),
        "KBQ_STAGING": "gs://staging",
        "KBQ_EXTRACT_CREDENTIALS": "anonymous",
        "KBQ_LOAD_CREDENTIALS": "anonymous",
        "KBQ_BACKUP_LOCATION": "gs://far/backups",
        "KBQ_BACKUP_PERSONAL_LOCATION": "gs://own",
    }
    mine = {
        "KBQ_BACKUP_CREDENTIALS": "file:/etc/far.json",
        "KBQ_BACKUP_PERSONAL_CREDENTIALS": "impersonate:a@b",
    }
    for settings in (parse_settings(places), parse_settings(places | mine)):
        for area in (REGULAR, PERSONAL):
            open_backup_store(settings, area, role, of_staging)
    assert opened == [
        ("gs://far/backups", "anonymous", of_staging),
        ("gs://own", "anonymous", of_staging),
        ("gs://far/backups", "file:/etc/far.json", None),
        ("gs://own", "impersonate:a@b", None),
    ]


@pytest.mark.parametrize(
    ("area", "location", "given"),
    [
        (REGULAR, "", "KBQ_BACKUP_CREDENTIALS"),
        (REGULAR, "/backups", "KBQ_BACKUP_CREDENTIALS"),
        (PERSONAL, "/backups", "KBQ_BACKUP_PERSONAL_CREDENTIALS"),
    ],
)
def test_credentials_of_no_bucket_are_refused_not_ignored(area: str, location: str, given: str) -> None:
    places = {
        "KBQ_STAGING": "gs://staging",
        given: "anonymous",
        given.replace("CREDENTIALS", "LOCATION"): location,
    }
    with pytest.raises(ConfigurationError, match=f"{given} is set"):
        open_backup_store(parse_settings(places), area)


@pytest.mark.parametrize("location", ["s3://bucket", "ftp://x/y"])
def test_a_place_that_no_store_has_is_refused_at_once(location: str) -> None:
    with pytest.raises(ConfigurationError, match="KBQ_BACKUP_LOCATION"):
        parse_settings({"KBQ_BACKUP_LOCATION": location})
