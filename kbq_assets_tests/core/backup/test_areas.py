"""A backup with personal data needs its own place."""

from __future__ import annotations

import pytest

from kbq_assets.core.backup.areas import area_of, check_backup, copied_area, has_tables
from kbq_assets.core.config.backup import BackupSettings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.options import ExtractionOptions, PrivacyOptions
from kbq_assets.core.topics.personal import parse_decisions
from kbq_assets.core.topics.topic_settings import TopicSettings


def topic(backup: str, *, personal: bool = False) -> TopicSettings:
    decisions = parse_decisions("email:drop") if personal else ()
    return TopicSettings(
        extraction=ExtractionOptions(backup=backup), privacy=PrivacyOptions(decisions=decisions)
    )


@pytest.mark.parametrize(
    ("backup", "personal", "area", "copied", "tables"),
    [
        ("false", False, "", "", True),
        ("false", True, "", "", True),
        ("true", False, "regular", "regular", True),
        ("true", True, "personal", "personal", True),
        ("only", False, "regular", "regular", False),
        ("only", True, "personal", "personal", False),
        ("read_only", False, "regular", "", True),
        ("read_only", True, "personal", "", True),
    ],
)
def test_the_option_and_personal_data_decide_about_the_place(
    backup: str, personal: bool, area: str, copied: str, tables: bool
) -> None:
    settings = topic(backup, personal=personal)
    assert (area_of(settings), copied_area(settings), has_tables(settings)) == (area, copied, tables)


@pytest.mark.parametrize("backup", ["true", "only"])
def test_personal_data_without_a_place_of_its_own_is_refused(backup: str) -> None:
    with pytest.raises(ConfigurationError, match=f"backup={backup}: a backup is verbatim") as refused:
        check_backup(topic(backup, personal=True), BackupSettings(location="/b"))
    assert "KBQ_BACKUP_PERSONAL_LOCATION" in refused.value.next_step


@pytest.mark.parametrize(
    ("settings", "place"),
    [(topic("true", personal=True), "/p"), (topic("true"), ""), (topic("false", personal=True), "")],
    ids=["with a place", "without personal data", "without a backup"],
)
def test_every_other_topic_passes(settings: TopicSettings, place: str) -> None:
    check_backup(settings, BackupSettings(personal_location=place))
