"""The inside of a load task, which writes one part of a load job's files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.config.parts import SparkSettings
from kbq_assets.core.config.settings import Settings, parse_settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.ports.load_tasks import WriteTask, WrittenFiles


@dataclass(frozen=True)
class WriteOnWorker:
    """The callable that is sent to workers: the addresses of the staging area and the lake, without secrets. If the
    lake has a named catalog, workers read pyiceberg's configuration themselves."""

    settings: Settings

    @staticmethod
    def of(settings: Settings) -> WriteOnWorker:
        """For the lake of the settings."""
        blank = parse_settings({"KBQ_HOME": str(settings.home)})
        return WriteOnWorker(
            dataclasses.replace(
                blank,
                staging_url=settings.staging_url,
                warehouse_urls=settings.warehouse_url,
                google=settings.google,
                spark=SparkSettings(settings.spark.master),
            )
        )

    def __call__(self, task: WriteTask) -> WrittenFiles:
        """Write one part."""
        try:
            from kbq_assets.adapters.iceberg.connect import configured
            from kbq_assets.adapters.iceberg.tasks import write
            from kbq_assets.adapters.staging import staged_files
            from kbq_assets.worker.adapters import open_load_store

            place = self.settings.warehouse
            properties = configured(place.catalog) if isinstance(place, LakeAddress) and place.catalog else {}
            return write(
                task, properties, staged_files(self.settings, lambda: open_load_store(self.settings))
            )
        except ModuleNotFoundError as error:
            return WrittenFiles(error=self._lacks(error.name))
        except ConfigurationError as error:
            return WrittenFiles(error=error)

    def _lacks(self, package: str | None) -> ConfigurationError:
        """The error of a package that is not installed where the tasks run."""
        if self.settings.spark.is_local:
            where, step = (
                "KBQ's installation on this machine lacks",
                "install KBQ again, with its dependencies",
            )
        else:
            where, step = (
                "Spark's workers lack",
                "run kbq pack with KBQ_WAREHOUSE set, or set KBQ_LAKE_SPARK_MB=0",
            )
        return ConfigurationError(f"{where} {package}", next_step=step)
