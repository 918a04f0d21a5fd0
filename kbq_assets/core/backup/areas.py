"""The area of each topic's backup. Topics with personal data have a separate area."""

from __future__ import annotations

from typing import Final

from kbq_assets.core.config.backup import BackupSettings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.topic_settings import TopicSettings

#: The areas in `KBQ_BACKUP_LOCATION` and in `KBQ_BACKUP_PERSONAL_LOCATION`.
REGULAR: Final = "regular"
PERSONAL: Final = "personal"
AREAS: Final = (REGULAR, PERSONAL)
#: The stop reason for a topic whose backup cannot be read.
UNREACHABLE: Final = "backup_unreachable"
#: The value that a replay sets for the option `backup`: copies are read, but not written.
READ_ONLY: Final = "read_only"


def area_of(settings: TopicSettings) -> str:
    """The area of a topic's backup; "" for a topic without one."""
    if settings.extraction.backup == "false":
        return ""
    return PERSONAL if settings.privacy.decisions else REGULAR


def copied_area(settings: TopicSettings) -> str:
    """The area to which copies of a topic are written; "" if none are."""
    return "" if settings.extraction.backup == READ_ONLY else area_of(settings)


def has_tables(settings: TopicSettings) -> bool:
    """Whether a topic has tables, not only a backup."""
    return settings.extraction.backup != "only"


def check_backup(settings: TopicSettings, backup: BackupSettings) -> None:
    """Raise ConfigurationError for a topic whose backup would put personal data into the regular area."""
    if area_of(settings) == PERSONAL and not backup.personal_location:
        raise ConfigurationError(
            f"backup={settings.extraction.backup}: a backup is verbatim, but the topic has personal data (pii)",
            next_step="set KBQ_BACKUP_PERSONAL_LOCATION, or backup=false",
        )
