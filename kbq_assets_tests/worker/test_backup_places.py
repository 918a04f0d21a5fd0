"""Where tasks write backups, by the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.backup.areas import PERSONAL, REGULAR
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


@pytest.mark.parametrize("location", ["s3://bucket", "ftp://x/y"])
def test_a_place_that_no_store_has_is_refused_at_once(location: str) -> None:
    with pytest.raises(ConfigurationError, match="KBQ_BACKUP_LOCATION"):
        parse_settings({"KBQ_BACKUP_LOCATION": location})
