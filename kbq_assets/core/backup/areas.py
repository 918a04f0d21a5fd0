"""Which topics are backed up, and where: topics with personal data have a place of their own."""

from __future__ import annotations

from typing import Final

from kbq_assets.core.config.backup import BackupSettings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.topic_settings import TopicSettings

#: The place of `KBQ_BACKUP_LOCATION`, and that of `KBQ_BACKUP_PERSONAL_LOCATION`.
REGULAR: Final = "regular"
PERSONAL: Final = "personal"
AREAS: Final = (REGULAR, PERSONAL)
#: The stop of a topic whose backup cannot be read.
UNREACHABLE: Final = "backup_unreachable"
#: What a replay makes of the option `backup`: the copies are read, and none is made.
READ_ONLY: Final = "read_only"


def area_of(settings: TopicSettings) -> str:
    """The area of a topic's backup; "" for a topic without one."""
    if settings.extraction.backup == "false":
        return ""
    return PERSONAL if settings.privacy.decisions else REGULAR


def copied_area(settings: TopicSettings) -> str:
    """The area that copies of a topic are written to; "" for none."""
    return "" if settings.extraction.backup == READ_ONLY else area_of(settings)


def has_tables(settings: TopicSettings) -> bool:
    """Whether a topic has tables, and not a backup alone."""
    return settings.extraction.backup != "only"


def check_backup(settings: TopicSettings, backup: BackupSettings) -> None:
    """Raise ConfigurationError for a topic whose backup would lay personal data where nobody expects it."""
    if area_of(settings) == PERSONAL and not backup.personal_location:
        raise ConfigurationError(
            f"backup={settings.extraction.backup}: a backup is verbatim, and the topic has personal data (pii)",
            next_step="name a place for it in KBQ_BACKUP_PERSONAL_LOCATION, or backup=false",
        )
