"""Settings of backups (PROTOCOL, Backup)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kbq_assets.core.config.variables import choice, place, variable, whole
from kbq_assets.core.config.variables import credentials as google_credentials

CODECS: Final = ("zstandard", "snappy", "deflate", "null")
#: The level of zstandard. Level 1 takes a quarter to a third more time, and saves as much space.
ZSTD_LEVEL: Final = -5
STORAGE_CLASSES: Final = ("", "STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE")


@dataclass(frozen=True)
class BackupSettings:
    """Where backups are stored and how long, and whether topics are backed up by default."""

    topics: str = variable(
        "KBQ_BACKUP",
        "whether topics are [backed up](backup.md) if their option `backup` is not set: true or false",
        "false",
        choice("true", "false"),
    )
    location: str = variable(
        "KBQ_BACKUP_LOCATION",
        "place of backups: a folder or gs://bucket/prefix",
        "",
        place,
        shown_default="KBQ_STAGING",
    )
    personal_location: str = variable(
        "KBQ_BACKUP_PERSONAL_LOCATION",
        "place of the backups of topics with personal data, which they contain verbatim; if not set, such backups "
        "are refused",
        "",
        place,
        shown_default="none",
    )
    credentials: str = variable(
        "KBQ_BACKUP_CREDENTIALS",
        "Google credentials for the bucket of `KBQ_BACKUP_LOCATION`: file:PATH, impersonate:EMAIL, anonymous",
        "",
        google_credentials,
        shown_default="those of the role",
        reference=True,
    )
    personal_credentials: str = variable(
        "KBQ_BACKUP_PERSONAL_CREDENTIALS",
        "Google credentials for the bucket of `KBQ_BACKUP_PERSONAL_LOCATION`: as above",
        "",
        google_credentials,
        shown_default="those of the role",
        reference=True,
    )
    days: int = variable("KBQ_BACKUP_DAYS", "days to keep backups; 0 keeps all", 0, whole())
    codec: str = variable(
        "KBQ_BACKUP_CODEC",
        "compression of backup files: zstandard, snappy, deflate or null; DuckDB reads all but zstandard",
        CODECS[0],
        choice(*CODECS),
    )
    level: int = variable(
        "KBQ_BACKUP_LEVEL",
        "level of zstandard in backup files, from -7 to 19; 1 makes them a fifth to a quarter smaller, and takes "
        "half as much time again",
        ZSTD_LEVEL,
        whole(least=-7, most=19),
    )
    storage_class: str = variable(
        "KBQ_BACKUP_STORAGE_CLASS",
        "storage class of backup files in a bucket: STANDARD, NEARLINE, COLDLINE or ARCHIVE",
        "",
        choice(*STORAGE_CLASSES),
        shown_default="the bucket's",
    )
