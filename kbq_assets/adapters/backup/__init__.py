"""The backup as a source of records."""

from kbq_assets.adapters.backup.source import BackupLog, BackupSource

__all__ = ["BackupLog", "BackupSource"]
